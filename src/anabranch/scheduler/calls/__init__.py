"""The calls that members make: exchanges, gatherings and admissions, one idea a file. Pure.

A *channel* is a set of members and the calls among them. Channel 0 is that of all sites; a subgroup
opens a further one. Each channel has a book, :class:`anabranch.scheduler._exchanges.ExchangeBook`.
A message of a site passes three stages::

    message ─▶ _checks ────────▶ the book ───────▶ _answering ─────▶ Outcome
               can it be?        what follows?     which members?    posted by `_outcomes`, after
                                 (_answer)         (messages)        the journal is written

An exchange goes through these states::

    call, or request ahead ─▶ waiting ──is granted──▶ held ──every member holds the result──▶ ended
                                 │                     │ ▲
                                 ├──▶ failed ◀─────────┤ └─ interrupted, repaired (`_settling`)
                                 └──▶ taken back ◀─────┘

- **Waiting** (`_requests`). The first request of a member may begin the exchange at once. It waits
  while other exchanges take the room, while its size has no plan, or while a request ahead asks for
  other terms. A broadcast waits until all members have called: it overwrites their buffers before
  a late member could disagree.
- **Leased** (`_leases`). The numbers that follow several exchanges in a row are granted before any
  member asks, for the sizes that came before. Members begin them at once, and then ask.
- **Held** (`_held`). The exchange has a plan, which never changes, and a number for its chunks.
  Each further member that asks for the same is granted the same plan.
- **Ended.** Every member has said that it holds the result. Their checksums are compared.
- **Failed** (`_order`, `_accounts`, `_knowledge`). Members asked for different things, made calls
  of two kinds in one place, or need a call of a member that has left. The later calls of the
  channel fail, too, if members would wait for one another in them.
- **Taken back.** A member asked ahead of a call and then made another call.

An exchange has two numbers. ``number`` counts the exchanges of its channel; users see it.
``exchange`` counts over all channels, is used once, and is carried by the chunks. So the chunks of
a failed attempt cannot be mistaken for those of the next.

Beside the exchanges: small values (`_gatherings`), subgroups (`_subgroups`), members that follow
without contributing (`_following`), the last call (`_end`), the cut into chunks (`_dealing`), and
the restoration after a restart (`_restoring`).

What must never happen:

- an exchange mixes two plans;
- an exchange gives one member a result and fails at another;
- a request holds room while no member will call for its exchange.
"""
