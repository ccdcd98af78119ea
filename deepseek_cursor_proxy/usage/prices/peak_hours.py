"""DeepSeek's clock: peak prices hold from 9 to 12 and from 14 to 18 o'clock in Beijing, Monday to Friday.

That is 01:00-04:00 and 06:00-10:00 UTC. Weekends, also those on which China works to make up for a holiday, and the
public holidays of China are off-peak all day. Beijing has no daylight saving time.
"""

from collections.abc import Collection
from datetime import date, datetime, timedelta, timezone

_BEIJING = timezone(timedelta(hours=8))
_PEAK_HOURS = frozenset((*range(9, 12), *range(14, 18)))

# Days of rest by notices of the State Council; [prices] holidays adds what a later notice names.
#   2026: the notice of November 4th, 2025.
#   2027: no notice is known yet. These are the days that the law itself makes holidays, on weekdays; which further days
#         are off around them is for the notice, usually of November, to say.
_PERIODS = (
    (date(2026, 1, 1), date(2026, 1, 3)),
    (date(2026, 2, 15), date(2026, 2, 23)),
    (date(2026, 4, 4), date(2026, 4, 6)),
    (date(2026, 5, 1), date(2026, 5, 5)),
    (date(2026, 6, 19), date(2026, 6, 21)),
    (date(2026, 9, 25), date(2026, 9, 27)),
    (date(2026, 10, 1), date(2026, 10, 7)),
    # New Year, Spring Festival with its eve, Qingming, Dragon Boat Festival, Mid-Autumn Festival, National Day.
    (date(2027, 1, 1), date(2027, 1, 1)),
    (date(2027, 2, 5), date(2027, 2, 8)),
    (date(2027, 4, 5), date(2027, 4, 5)),
    (date(2027, 6, 9), date(2027, 6, 9)),
    (date(2027, 9, 15), date(2027, 9, 15)),
    (date(2027, 10, 1), date(2027, 10, 3)),
)
HOLIDAYS = frozenset(
    first + timedelta(days=number) for first, last in _PERIODS for number in range((last - first).days + 1)
)


def is_peak(moment: datetime, more_holidays: Collection[date] = ()) -> bool:
    """Whether the peak price holds at that moment, which has a time zone."""
    there = moment.astimezone(_BEIJING)
    day = there.date()
    if there.hour not in _PEAK_HOURS or day.weekday() >= 5:
        return False
    return day not in HOLIDAYS and day not in more_holidays
