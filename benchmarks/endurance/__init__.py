"""Does a run survive what long runs meet, and end as if it had not met it?"""
