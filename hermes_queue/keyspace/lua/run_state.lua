-- Pause, resume or cancel a run.
--
-- @key run = run:{run_id}
-- @arg state  active | paused | cancelled
-- @arg reason  shown to operators
-- @arg by  operator, or the cause of the failure for which a worker pauses it
-- An operator's pause replaces any other pause, so that only `resume` ends it.
-- Returns the previous state, or unknown; a cancelled run stays cancelled, and then nothing
-- changes. Workers learn of the state in `begin` and `renew`.
local before = redis.call('HGET', run, 'state')
if not before then return 'unknown' end
local takes_over = before == 'paused' and state == 'paused' and by == 'operator'
if before ~= 'cancelled' and (before ~= state or takes_over) then
  redis.call('HDEL', run, 'reason')  -- first, so that a full Redis accepts the script, see trim.lua
  redis.call('HSET', run, 'state', state, 'reason', reason, 'paused_by', by)
end
return before
