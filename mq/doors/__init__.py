"""Doors: how requests come in. A door moves bytes between its transport and `mq.service`, and decides nothing."""
