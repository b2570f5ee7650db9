"""Has the log install what a compaction proposes, if the state allows all of it. Runs on the loop.

The long part, reading and comparing, happens in another thread or process, by rules taken at one durable moment. The
state goes on meanwhile; so at the very end, in the turn in which the swap is queued, it is asked once more.
"""

from __future__ import annotations

import asyncio

from loguru import logger

from mq.commitqueue import Done
from mq.errors import MqError, ProposalNotFound, ProposalRefused, Unavailable
from mq.judge import Judge
from mq.owner import Owner
from mq.reply import InstallReply, Reply
from mq.rules import Rules
from wal.errors import InstallRefused, LogClosed, NoSuchProposal, WalError


class Installer:
    def __init__(self, owner: Owner) -> None:
        self._owner = owner

    def begin(self, proposal: str, done: Done) -> None:
        """Answered when it is installed and durable, or refused."""
        self._owner.spawn(self._answer(proposal, done))

    async def _answer(self, proposal: str, done: Done) -> None:
        try:
            reply = await self._install(proposal)
        except MqError as error:
            self._owner.answer(done, error)
        except Exception as error:
            logger.opt(exception=error).error("proposal {} can't be installed", proposal)
            self._owner.answer(done, Unavailable("the log can't be read at the moment"))
        else:
            self._owner.answer(done, reply)

    async def _install(self, proposal: str) -> InstallReply:
        state = self._owner.state
        judges: list[Judge] = []

        async def engage() -> Judge:
            judges.append(Judge(Rules(state, self._owner.clock.now_us())))
            await self._all_durable()
            return judges[0]

        try:
            done = await self._owner.log.install_offer(proposal, engage, lambda: judges[0].confirm(state))
        except NoSuchProposal as error:
            raise ProposalNotFound(str(error)) from error
        except InstallRefused as error:
            logger.warning("proposal {} is refused: {}", proposal, error)
            raise ProposalRefused(str(error)) from error
        except LogClosed as error:
            raise Unavailable("the broker is shutting down") from error
        except WalError as error:
            raise Unavailable("the log takes nothing at the moment") from error
        offer = done.offer
        freed = done.bytes_before - done.bytes_after
        logger.info("proposal {} is installed: {} messages less, {} bytes", proposal, offer.dropped_messages, freed)
        return InstallReply(
            done.segments, done.bytes_before, done.bytes_after, offer.dropped_records, offer.dropped_messages
        )

    async def _all_durable(self) -> None:
        """Wait until everything decided so far is durable. Raises MqError where it never will be."""
        durable: asyncio.Future[Reply | MqError] = self._owner.loop.create_future()
        self._owner.answer(durable.set_result, InstallReply())
        answer = await durable
        if isinstance(answer, MqError):
            raise answer
