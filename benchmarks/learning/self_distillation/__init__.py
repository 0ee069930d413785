"""Can a policy that reads a solution teach itself a task that it hardly ever solves?"""
