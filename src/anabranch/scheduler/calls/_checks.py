"""Refuses messages about calls that no correct site sends. Pure."""

from __future__ import annotations

from dataclasses import dataclass

from anabranch.exchange.terms import Op, Wire
from anabranch.net.errors import OutOfPlaceMessage, OversizedMessage
from anabranch.net.messages import (
    MOST_GATHERED_BYTES,
    MOST_NAME_CHARACTERS,
    NO_MESSAGE,
    Admitted,
    ExchangeFailed,
    Gather,
    Gathered,
    GatherFailed,
    Settled,
    Signature,
    SiteSnapshot,
    decode,
)
from anabranch.scheduler.calls._accounts import Name

_OPS, _WIRES = frozenset(Op), frozenset(Wire)
_ANSWERS = ExchangeFailed, Settled, Gathered, GatherFailed, Admitted


@dataclass(frozen=True, slots=True)
class Checks:
    """Checks of the messages about calls.

    Args:
        name: returns a site's name for error messages.
        sites: the number of sites.
        repairs: whether exchanges are repaired after a loss; only then can sites be admitted.
    """

    name: Name
    sites: int
    repairs: bool

    def exchange(self, site: int, signature: Signature) -> None:
        """Check the terms of an exchange.

        Raises:
            OutOfPlaceMessage: no elements, an unknown operation or type, impossible receivers, or
                tensors of other sizes than the buffer.
        """
        if (
            signature.elements < 1
            or signature.op not in _OPS
            or signature.wire not in _WIRES
            or (signature.receivers and not self._may_be_transfer(signature))
            or (signature.tensors and not _fit(signature.tensors, signature.elements))
            or not _may_be_blocks(signature)
        ):
            raise OutOfPlaceMessage(
                f"{self.name(site)} asks to exchange {signature}, which is impossible"
            )

    def _may_be_transfer(self, signature: Signature) -> bool:
        receivers = signature.receivers
        fits = receivers == tuple(sorted({*receivers})) and receivers[0] >= 0
        return (
            self.repairs
            and fits
            and receivers[-1] < self.sites
            and signature.op == Op.COPY
            and signature.source is None
        )

    def gathering(self, site: int, message: Gather) -> None:
        """Check a site's value for a gathering.

        Raises:
            OversizedMessage: the value or its description is too large.
            OutOfPlaceMessage: it admits newcomers where none can join.
        """
        if len(message.value) > MOST_GATHERED_BYTES:
            raise OversizedMessage(
                f"{self.name(site)} gathers {len(message.value)} bytes, at most "
                f"{MOST_GATHERED_BYTES} are allowed"
            )
        if len(message.what) > MOST_NAME_CHARACTERS:
            raise OversizedMessage(
                f"{self.name(site)} describes a gathering in {len(message.what)} characters, at "
                f"most {MOST_NAME_CHARACTERS} are allowed"
            )
        if message.admits and (message.channel or not self.repairs):
            raise OutOfPlaceMessage(f"{self.name(site)} admits newcomers where none can join")

    def subgroup(
        self, site: int, members: tuple[int, ...], named: str, without: tuple[int, ...] = ()
    ) -> None:
        """Check the subgroup that a site asks for.

        Raises:
            OutOfPlaceMessage: the members are no rising sites of the run, or lack this one; or it
                asks for a channel without itself.
            OversizedMessage: the name is too long.
        """
        if len(named) > MOST_NAME_CHARACTERS:
            raise OversizedMessage(
                f"{self.name(site)} names a subgroup with {len(named)} characters, at most "
                f"{MOST_NAME_CHARACTERS} are allowed"
            )
        fits = all(0 <= each < self.sites for each in members) and members == tuple(
            sorted({*members})
        )
        if not fits or site not in {*members} - {*without}:
            raise OutOfPlaceMessage(f"{self.name(site)} asks for a subgroup of sites {members}")

    def snapshot(self, site: int, snapshot: SiteSnapshot) -> None:
        """Check a site's report about its calls after a restart.

        Raises:
            OutOfPlaceMessage: an impossible call, or a message that is no answer to a call.
        """
        for channel in snapshot.channels:
            counts: tuple[int, ...] = channel.asked, channel.gathered, channel.version
            for exchange in channel.exchanges:
                self.exchange(site, exchange.signature)
                numbers = exchange.number, exchange.place, exchange.chunk_elements
                counts = *counts, *numbers, exchange.generation, exchange.exchange
                counts = *counts, *exchange.followers
            for encoded in channel.answers:
                try:
                    is_answer = isinstance(decode(encoded), _ANSWERS)
                except NO_MESSAGE:
                    is_answer = False
                if not is_answer:
                    raise OutOfPlaceMessage(
                        f"{self.name(site)} reports a message that is no answer to a call"
                    )
            if min(counts) < 0:
                raise OutOfPlaceMessage(f"{self.name(site)} reports negative numbers: {counts}")


def _may_be_blocks(signature: Signature) -> bool:
    """Return whether elements fill their blocks, and blocks carry a mean without copies."""
    wire = Wire(signature.wire)
    is_mean = signature.op == Op.MEAN and signature.source is None and not signature.receivers
    is_whole = signature.elements % wire.block_elements == 0 and not signature.tensors
    return not wire.has_blocks or (is_mean and is_whole)


def _fit(tensors: tuple[int, ...], elements: int) -> bool:
    return min(tensors) >= 1 and sum(tensors) == elements
