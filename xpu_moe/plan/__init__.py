"""What fits on a card, how fast it could be, and whether graphs are allowed. Needs no torch and no card.

from xpu_moe.plan.memory import Request, plan_memory     # bytes of one rank, KV tokens, does it fit
from xpu_moe.plan.profiles import PROFILES               # named launches with measured points behind them
from xpu_moe.plan.graph_policy import Situation, decide  # capture mode, sizes, environment, hooks, reason
from xpu_moe.plan.roofline import roofline               # bytes and collectives of one decode step
"""
