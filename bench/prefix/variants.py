"""What is measured in a round, by name: each gives a result, or raises scene.Failed.

A result without equal answers does not exist: check() stands between asking and any time.
"""

import contextlib

import bench_path  # noqa: F401  (finds tests/netns)
import names
import scene


class Wrong(Exception):
    """An answer that is not bit for bit the full KV's."""


def check(questions, answers):
    for question, answer in zip(questions, answers, strict=True):
        if (answer["token_ids"], answer["logits_hash"]) != (question.token_ids,
                                                            question.logits_hash):
            raise Wrong(f"the answer to {question.id} is not bit for bit that of full KV")


def result_of(questions, answers, wall_s, down, up):
    """answers of all nodes in the order of `questions`."""
    check(questions, answers)
    return {
        "first_s": [a["first_s"] for a in answers], "total_s": [a["total_s"] for a in answers],
        "wall_s": wall_s, "requests_per_s": len(answers) / wall_s,
        "down_bytes": down, "up_bytes": up, "stats": [a["stats"] for a in answers],
        "cached_tokens": [a["cached_tokens"] for a in answers],
    }


def with_verifier_flags(place, features, node, plan):
    flags = place.store_flags(node) + place.verifier_flags(node)
    return flags + (["--prefix-plan", plan] if features.has("serve", "--prefix-plan") else [])


class One:
    """One request on one node."""

    def __init__(self, place, features, question, again, draft):
        self.place, self.features, self.draft = place, features, draft
        self.question, self.again, self.node = question, again, place.nodes[0]

    def ask(self, question, draft, address=None):
        answers, wall_s, down, up = self.place.ask([(self.node, address, [question], draft)], 1)
        return result_of([question], answers[0], wall_s, down, up)

    def recompute(self):
        with self.place.serving(self.node, "--prefix-memory", 0):
            return {names.RECOMPUTE: self.ask(self.question, "off")}

    def load_full(self):
        return self.loading(names.LOAD_FULL, "off", "load")

    def load_draft(self):
        return self.loading(names.LOAD_DRAFT, self.draft, "load")

    def draft_first(self):
        return self.loading(names.DRAFT_FIRST, self.draft, "draft-first")

    def loading(self, name, draft, plan):
        """Full blocks over the link, nothing kept in RAM from before."""
        flags = self.place.store_flags(self.node)
        known = {c: self.features.has(c, "--prefix-plan") for c in ("serve", "run")}
        if plan == "load":
            flags += ["--prefix-plan", plan] if known["serve"] else []
            with self.place.serving(self.node, "--prefix-memory", 0, *flags):
                return {name: self.ask(self.question, draft)}
        if not known["run"]:
            raise scene.Failed(f"this build has no --prefix-plan {plan}")
        found = self.place.run_once(self.node, self.question, draft, *flags, "--prefix-plan", plan)
        return {name: result_of([self.question], found[:1], found[0]["total_s"], *found[1:])}

    def at_store(self):
        """First as after a start there, then with the prefix in that machine's RAM."""
        with self.place.far("serve", scene.FAR_PORT):
            address = self.node.reach(scene.FAR_PORT)
            return {name: self.ask(question, "off", address)
                    for name, question in ((names.AT_STORE, self.question),
                                           (names.AT_STORE_AGAIN, self.again))}

    def remote(self):
        return self.with_verifier(names.REMOTE, names.REMOTE_AGAIN, "remote")

    def chosen(self):
        return self.with_verifier(names.CHOSEN, names.CHOSEN_AGAIN, "auto")

    def with_verifier(self, first, again, plan):
        flags = with_verifier_flags(self.place, self.features, self.node, plan)
        # A node that chooses for itself has the RAM that it has by default.
        memory = [] if plan == "auto" else ["--prefix-memory", 0]
        asked = (first, self.question), (again, self.again)
        with contextlib.ExitStack() as stack:
            stack.enter_context(self.place.far("verifier", scene.VERIFIER_PORT))
            if self.features.has("serve", "--verifier"):
                stack.enter_context(self.place.serving(self.node, *memory, *flags))
                return {name: self.ask(question, self.draft) for name, question in asked}
            found = {}
            for name, question in asked:
                ran = self.place.run_once(self.node, question, self.draft, *flags)
                found[name] = result_of([question], ran[:1], ran[0]["total_s"], *ran[1:])
            return found

    def all(self):
        return {names.LOAD_FULL: self.load_full, names.LOAD_DRAFT: self.load_draft,
                names.AT_STORE: self.at_store, names.DRAFT_FIRST: self.draft_first,
                names.REMOTE: self.remote, names.CHOSEN: self.chosen,
                names.RECOMPUTE: self.recompute}


class Many:
    """Requests at once, dealt out over the nodes."""

    def __init__(self, place, features, questions, draft):
        self.place, self.features, self.questions, self.draft = place, features, questions, draft

    def dealt(self):
        count = len(self.place.nodes)
        return [self.questions[i::count] for i in range(count)]

    def ask(self, draft, port=None):
        dealt = self.dealt()
        asked = [(node, node.reach(port) if port else None, questions, draft)
                 for node, questions in zip(self.place.nodes, dealt)]
        answers, wall_s, down, up = self.place.ask(asked, max(map(len, dealt)))
        return result_of([q for part in dealt for q in part],
                         [a for part in answers for a in part], wall_s, down, up)

    def load_full(self):
        with contextlib.ExitStack() as stack:
            for node in self.place.nodes:
                stack.enter_context(self.place.serving(node, *self.place.store_flags(node)))
            return {names.LOAD_FULL: self.ask("off")}

    def at_store(self):
        with self.place.far("serve", scene.FAR_PORT):
            return {names.AT_STORE: self.ask("off", scene.FAR_PORT)}

    def staggered(self):
        return {names.STAGGERED: self.remote("remote")}

    def chosen(self):
        return {names.CHOSEN_MANY: self.remote("auto")}

    def lock_step(self):
        if not self.features.has("verifier", "--lock-step"):
            raise scene.Failed("this build's verifier has no --lock-step")
        return {names.LOCK_STEP: self.remote("remote", "--lock-step")}

    def remote(self, plan, *more):
        if not self.features.has("serve", "--verifier"):
            raise scene.Failed("this build's serve has no --verifier")
        with contextlib.ExitStack() as stack:
            stack.enter_context(self.place.far("verifier", scene.VERIFIER_PORT, *more))
            for node in self.place.nodes:
                flags = with_verifier_flags(self.place, self.features, node, plan)
                stack.enter_context(self.place.serving(node, *flags))
            return self.ask(self.draft)

    def all(self):
        return {names.LOAD_FULL: self.load_full, names.AT_STORE: self.at_store,
                names.STAGGERED: self.staggered, names.LOCK_STEP: self.lock_step,
                names.CHOSEN_MANY: self.chosen}
