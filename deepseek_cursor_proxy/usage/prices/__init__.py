"""What requests cost: DeepSeek's prices, the hours in which they are higher, and the sum. Always an estimate.

    rates         the built-in table: what a million tokens cost, from which moment on; edit it when prices change
    peak_hours    when DeepSeek charges the higher price, and the public holidays of China on which it does not
    price_list    PriceList: both, with the overrides of the configuration; the Cost of a request

Pure: the moment and the settings are arguments. Other folders import `price_list`.
"""
