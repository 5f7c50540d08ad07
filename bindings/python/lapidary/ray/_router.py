"""Sends a request to the replica that has read the longest beginning of its prompt."""

from __future__ import annotations

import random
from typing import Any

from ray.serve.request_router import PendingRequest, ReplicaID, RequestRouter, RunningReplica

from ._prefixes import Prefixes, chain, text_of


class PrefixRouter(RequestRouter):
    """Sends a request to the replica that has read the longest beginning of its prompt, unless that one
    has far more to do than another; a new prompt goes to the less busy of two."""

    def initialize_state(self, most_ahead: int = 8, most_prefixes: int = 100_000) -> None:
        """A replica is passed over if it has this many requests more than another."""
        self._most_ahead = most_ahead
        self._prefixes = Prefixes(most_prefixes)

    def _names(self, request: PendingRequest | None) -> list[bytes]:
        if request is None:
            return []
        values = [*request.args, *request.kwargs.values()]
        return next((chain(text) for text in map(text_of, values) if text), [])

    def _busy(self, replica: RunningReplica) -> int:
        return self.replica_queue_len_cache.get(replica.replica_id) or 0

    async def choose_replicas(
        self,
        candidate_replicas: list[RunningReplica],
        pending_request: PendingRequest | None = None,
    ) -> list[list[RunningReplica]]:
        """Replicas by preference."""
        if pending_request is not None:
            # What is full is asked again after a pause.
            pending_request.routing_context.should_backoff = True
        by_id = {replica.replica_id: replica for replica in candidate_replicas}
        two = random.sample(candidate_replicas, min(2, len(candidate_replicas)))
        holder, _ = self._prefixes.best(self._names(pending_request), list(by_id))
        if holder is None:
            return [two]
        replica = by_id[holder]
        least = min(map(self._busy, candidate_replicas))
        if self._busy(replica) - least > self._most_ahead:
            return [two]
        return [[replica], [other for other in two if other is not replica]]

    def on_request_routed(
        self, pending_request: PendingRequest, replica_id: ReplicaID, result: Any
    ) -> None:
        """Notes who reads it."""
        self._prefixes.note(self._names(pending_request), replica_id)

    def on_replica_actor_died(self, replica_id: ReplicaID) -> None:
        """Forgets what it had."""
        super().on_replica_actor_died(replica_id)
        self._prefixes.forget(replica_id)
