from tests.support.width import scale_waits

scale_waits()
