"""Who computes what in the next step: one token budget, no phases."""

from backend.scheduler.config import SchedulerConfig
from backend.scheduler.scheduler import Scheduler

__all__ = ["Scheduler", "SchedulerConfig"]
