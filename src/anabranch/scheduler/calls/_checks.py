"""Whether what a site asks for, or says of its calls, can be. Pure."""

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
    Standing,
    decode,
)
from anabranch.scheduler.calls._accounts import Name

_OPS, _WIRES = frozenset(Op), frozenset(Wire)
_ANSWERS = ExchangeFailed, Settled, Gathered, GatherFailed, Admitted


@dataclass(frozen=True, slots=True)
class Checks:
    """What can be asked for in a run.

    Args:
        name: makes a site's name for error messages.
        sites: how many there are.
        repairs: whether exchanges go on without what is lost, and state may be handed on.
    """

    name: Name
    sites: int
    repairs: bool

    def exchange(self, site: int, signature: Signature) -> None:
        """Check what a site would exchange.

        Raises:
            OutOfPlaceMessage: it cannot be.
        """
        if (
            signature.elements < 1
            or signature.op not in _OPS
            or signature.wire not in _WIRES
            or (signature.receivers and not self._may_be_transfer(signature))
        ):
            raise OutOfPlaceMessage(f"{self.name(site)} asks to exchange {signature}")

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
        """Check what a site would gather.

        Raises:
            OversizedMessage: its value is too large, or what it is for takes too many words.
            OutOfPlaceMessage: it lets others in, and none can be.
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
            raise OutOfPlaceMessage(f"{self.name(site)} lets others in where none can be")

    def subgroup(self, site: int, members: tuple[int, ...], named: str) -> None:
        """Check what subgroup a site asks for.

        Raises:
            OutOfPlaceMessage: sites that cannot be, or without the one that asks.
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
        if not fits or site not in members:
            raise OutOfPlaceMessage(f"{self.name(site)} asks for a subgroup of sites {members}")

    def standing(self, site: int, standing: Standing) -> None:
        """Check what a site says of its calls after a restart.

        Raises:
            OutOfPlaceMessage: a call that cannot be, or what is no answer to one.
        """
        for channel in standing.channels:
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
                    raise OutOfPlaceMessage(f"{self.name(site)} tells of an answer that is none")
            if min(counts) < 0:
                raise OutOfPlaceMessage(f"{self.name(site)} says that it stands at {counts}")
