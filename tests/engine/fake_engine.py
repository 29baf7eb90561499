"""Stand-ins of SGLang's scheduler, requests and radix cache: just what the bridge touches."""

from types import SimpleNamespace
from typing import Any, NamedTuple


class FakeReq:
    def __init__(self, rid, prompt, max_new, tags=None, extra_key=None):
        self.rid = rid
        self.origin_input_ids = list(prompt)
        self.output_ids = []
        self.sampling_params = SimpleNamespace(max_new_tokens=max_new, custom_params=tags, ignore_eos=False)
        self.extra_key = extra_key
        self.cache_salt = None
        self.session = None
        self.multimodal_inputs = None
        self.input_embeds = None
        self.beam_group = None
        self.finished_reason = None
        self.to_finish = None
        self.return_logprob = False
        self.grammar = None

    def finished(self):
        return self.finished_reason is not None


class FINISH_ABORT:
    pass


class FINISH_LENGTH:
    pass


class FakeBatch:
    def __init__(self, reqs):
        self.reqs = list(reqs)
        self.batch_is_full = False

    def release_req(self, index, remaining):
        self.reqs[index].released = True

    def filter_batch(self, keep_indices):
        self.reqs = [self.reqs[i] for i in keep_indices]

    def new_tokens_required_next_decode(self):
        return len(self.reqs)


class FakePin(NamedTuple):
    tokens: int


class FakeRadix:
    """A cache that holds everything; counts locks."""

    reads_only = True
    can_evict = False

    def __init__(self):
        self.locks = 0

    def present(self, tokens, key):
        return 0

    def pin(self, tokens, key):
        self.locks += 1
        return FakePin(len(tokens))

    def unpin(self, pin):
        self.locks -= 1

    def evict(self, tokens, key):
        return 0


class FakeScheduler:
    """Admits what is left in its waiting queue, in order, while slots last."""

    def __init__(self, slots=4, tokens=1000):
        self.waiting_queue: list[Any] = []
        self.running_batch = FakeBatch([])
        self.chunked_req = None
        self.max_total_num_tokens = tokens
        self.max_running_requests = slots
        self.max_queued_requests = None
        self.spec_algorithm = None
        self.refuses = False
        self.admitted: list[str] = []
        self.token_to_kv_pool_allocator = SimpleNamespace(available_size=lambda: self.max_total_num_tokens)
        self.tree_cache = SimpleNamespace(evictable_size=lambda: 0, protected_size=lambda: 0)

    def _add_request_to_queue(self, req, is_retracted=False):
        self.waiting_queue.append(req)

    def original(self, _scheduler, batch, bridge=None):
        if bridge is not None:
            bridge.order(self.waiting_queue)
        taken = [] if self.refuses else self.waiting_queue[: self.max_running_requests - len(batch.reqs)]
        self.waiting_queue = [req for req in self.waiting_queue if req not in taken]
        self.admitted += [req.rid for req in taken]
        new = FakeBatch(taken) if taken else None
        return SimpleNamespace(batch_to_run=new, running_batch=batch)

    def step(self, bridge):
        """One pass and one decode step: all that runs gets a token, what has enough finishes."""
        plan = bridge.admission_pass(lambda s, batch: self.original(s, batch, bridge), (self.running_batch,), {})
        if plan.batch_to_run is not None:
            self.running_batch.reqs += plan.batch_to_run.reqs
        for req in self.running_batch.reqs:
            req.output_ids.append(1)
            if len(req.output_ids) >= req.sampling_params.max_new_tokens:
                req.finished_reason = FINISH_LENGTH()
        self.running_batch.reqs = [req for req in self.running_batch.reqs if not req.finished()]
        return plan
