"""Continuous batching: one token budget per step, no separate prefill and decode phases."""

from backend.scheduler.config import SchedulerConfig
from backend.scheduler.scheduler import Scheduler

__all__ = ["Scheduler", "SchedulerConfig"]
