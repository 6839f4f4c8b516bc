"""The lease/relay core every slice stands on. It knows no slice and no driver.

A leased row lives so, whatever its table calls the states::

                      claim: attempt + 1, fresh token,
                      available_at = now + visibility timeout
        +---------+ ------------------------------------> +------+
    --> | waiting |                                       | held | --- complete --> done
        +---------+ <------------------------------------ +------+ --- bury ------> buried
                      retry: available_at = now + backoff     |
                      release: attempt - 1, available now     |  lease runs out: available_at <= now,
                                                              +-> so the row is simply claimed again

`available_at` alone decides: null means settled, `<= now` means claimable. Every arrow out of `held` is fenced on the
token of its claim; a late one changes nothing.
"""
