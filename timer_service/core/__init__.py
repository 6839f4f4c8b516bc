"""The parts that all slices share: the intake of commands, the lease, the outbox and its relay. It imports no driver.

The states of a leased row. A held row has a `lease_token`; its column `state` is still that of a waiting one::

                      claim: attempt + 1, new token,
                      available_at = now + visibility timeout
        +---------+ ------------------------------------> +------+
    --> | waiting |                                       | held | --- complete --> done
        +---------+ <------------------------------------ +------+ --- bury ------> buried
                      retry: available_at = now + backoff     |
                      release: attempt - 1, available now     |  the lease expires: available_at <= now,
                                                              +-> so the row can be claimed again

Only `available_at` decides: null means settled, `<= now` means claimable. Every arrow out of `held` checks the token of
its claim. A late write with an old token changes nothing.
"""
