-- Pause a run, let it go on, or cancel it.
--
-- KEYS[1] run:{id}
-- ARGV[1] active | paused | cancelled  ARGV[2] reason, shown to operators
-- ARGV[3] who: operator | model_config
-- An operator's pause takes the place of anybody else's, so that only a `resume` ends it.
-- Returns the state before, or unknown; a cancelled run stays cancelled, and then nothing
-- changes. Workers learn of it in `begin` and `renew`.
local before = redis.call('HGET', KEYS[1], 'state')
if not before then return 'unknown' end
local takes_over = before == 'paused' and ARGV[1] == 'paused' and ARGV[3] == 'operator'
if before ~= 'cancelled' and (before ~= ARGV[1] or takes_over) then
  redis.call('HDEL', KEYS[1], 'reason')  -- first, so that a Redis that is full lets it pass, see trim.lua
  redis.call('HSET', KEYS[1], 'state', ARGV[1], 'reason', ARGV[2], 'paused_by', ARGV[3])
end
return before
