-- Where slot-time went: the hashes `goodput` (fleet) and goodput:{run_id}, and the current tally:{bucket}.
--
-- Field -> sum. s|<account>: seconds for which slots were leased; d|<account> and l|<account>: measured
-- attempts that do not count in the end, and their seconds. Workers add the rest, see goodput.lua.
local TALLY_S, TALLY_KEPT_S = 120, 5400  -- as BUCKET_S and KEPT_S in ledger/fleet/tally.py

local function charge(prefix, run_id, ttl_s, field, by, now)
  local bucket = prefix .. 'tally:' .. string.format('%.0f', math.floor(now / TALLY_S))
  local own = prefix .. 'goodput:' .. run_id
  redis.call('HINCRBYFLOAT', prefix .. 'goodput', field, by)
  redis.call('HINCRBYFLOAT', own, field, by)
  redis.call('EXPIRE', own, math.max(1, ttl_s))
  redis.call('HINCRBYFLOAT', bucket, 'good:' .. field, by)
  redis.call('EXPIRE', bucket, TALLY_KEPT_S)
end
