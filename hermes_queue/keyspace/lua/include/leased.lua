-- Seconds for which an attempt has held its slot, of which `begun` is the start.
local LEASE_MOST_S = 2592000  -- a producer could write any start
local function leased_s(begun, now)
  local since = tonumber(begun or '')
  if not since or since ~= since then return 0 end
  return math.min(math.max(now - since, 0), LEASE_MOST_S)
end
