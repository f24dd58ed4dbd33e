-- @include time
-- Take the fleet's turn at reaping one backend's sandboxes.
-- @key turn = reaper:{backend}:turn  time of the last turn
-- @key suspects = reaper:{backend}:suspects
-- @arg interval_s  minimum time between two turns of the fleet
-- Returns 1 if the turn is the caller's, else 0.
-- If turns were missed, Redis or the whole fleet was away: living workers could not renew meanwhile, so
-- all suspicions are dropped; also if the server's clock was set back.
local since = now - tonumber(redis.call('GET', turn) or '0')
if since >= 0 and since < tonumber(interval_s) then return 0 end
redis.call('SET', turn, stamp(now), 'EX', 86400)
if since < 0 or since > 2 * tonumber(interval_s) then redis.call('DEL', suspects) end
return 1
