"""Names of what is measured, as they stand in records, and what they are compared as."""

# One request.
RECOMPUTE = "recompute"
LOAD_FULL = "load full, then decode"
LOAD_DRAFT = "load full, then decode with drafts"
AT_STORE, AT_STORE_AGAIN = "whole request at the store", "whole request at the store, prefix in RAM"
DRAFT_FIRST = "drafting while full blocks arrive"
REMOTE, REMOTE_AGAIN = "remote drafting", "remote drafting, prefix in the verifier's RAM"
CHOSEN, CHOSEN_AGAIN = "with a verifier, as it chooses", "as it chooses, the next request"
# Many.
STAGGERED, LOCK_STEP = "remote drafting, staggered", "remote drafting, lock-step"
CHOSEN_MANY = "with a verifier, as each chooses"

ONE = [RECOMPUTE, LOAD_FULL, LOAD_DRAFT, AT_STORE, AT_STORE_AGAIN, DRAFT_FIRST, REMOTE,
       REMOTE_AGAIN, CHOSEN, CHOSEN_AGAIN]
MANY = [LOAD_FULL, AT_STORE, STAGGERED, LOCK_STEP, CHOSEN_MANY]
# What a controller without remote drafting could have picked. The store's own node takes part only
# where it has time for whole requests; the report says both.
ALTERNATIVES = [RECOMPUTE, LOAD_FULL, LOAD_DRAFT, DRAFT_FIRST]
CONTEXTS = {"4k": 4096, "8k": 8192, "16k": 16384, "32k": 32768}
