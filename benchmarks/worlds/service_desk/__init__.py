"""ServiceDesk-v0: is it right, can it be guessed, is it fast, is what is held out held out?"""
