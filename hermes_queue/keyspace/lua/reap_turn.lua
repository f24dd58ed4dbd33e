-- Take the fleet's turn at reaping one backend's sandboxes.
--
-- KEYS[1] reaper:{backend}:turn (when)  KEYS[2] reaper:{backend}:suspects
-- ARGV[1] least seconds between two turns of the fleet
-- Returns 1 when the turn is the caller's, else 0.
-- When turns were missed, Redis or the whole fleet was away: living workers had no chance to
-- renew meanwhile, so every suspicion begins anew; likewise when the server's clock was set back.
local t = redis.call('TIME')
local now = tonumber(t[1]) + tonumber(t[2]) / 1e6
local since = now - tonumber(redis.call('GET', KEYS[1]) or '0')
if since >= 0 and since < tonumber(ARGV[1]) then return 0 end
redis.call('SET', KEYS[1], string.format('%.6f', now), 'EX', 86400)
if since < 0 or since > 2 * tonumber(ARGV[1]) then redis.call('DEL', KEYS[2]) end
return 1
