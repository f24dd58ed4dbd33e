-- @include time
-- Take the fleet's turn at reaping one backend's sandboxes.
--
-- @key turn = reaper:{backend}:turn  when it was taken last
-- @key suspects = reaper:{backend}:suspects
-- @arg interval_s  between two turns of the fleet, at least
-- Returns 1 when the turn is the caller's, else 0.
-- When turns were missed, Redis or the whole fleet was away: living workers had no chance to
-- renew meanwhile, so every suspicion begins anew; likewise when the server's clock was set back.
local since = now - tonumber(redis.call('GET', turn) or '0')
if since >= 0 and since < tonumber(interval_s) then return 0 end
redis.call('SET', turn, stamp(now), 'EX', 86400)
if since < 0 or since > 2 * tonumber(interval_s) then redis.call('DEL', suspects) end
return 1
