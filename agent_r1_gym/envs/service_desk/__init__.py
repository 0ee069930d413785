"""AgentR1/ServiceDesk-v0: a shop's service desk over a database, in process or behind HTTP."""
