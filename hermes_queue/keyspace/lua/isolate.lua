-- include: budget
-- The owner of a job gives it back to run alone, if workers died under another job of the same item.
--
-- KEYS[1] traj:{id}  KEYS[2] leases  KEYS[3] delayed  KEYS[4] run:{id}
-- KEYS[5] poison (hash: SHA-256 of an item -> {letter, trajectory_id, until} (JSON), see publish.lua)
-- ARGV[1] id  ARGV[2] owner  ARGV[3] epoch  ARGV[4] SHA-256 of its item
-- It is due at once in the last lane of quarantine; that is neither an attempt nor a death.
-- Returns the id of the earlier dead letter; '' when the item is not known, the job runs alone
-- already, or the lease is somebody else's: then nothing was done.
local t = redis.call('TIME')
local now = tonumber(t[1]) + tonumber(t[2]) / 1e6
local raw = redis.call('HGET', KEYS[5], ARGV[4])
local known = raw and cjson.decode(raw)
if not known or known['until'] < now then return '' end
local f = redis.call('HMGET', KEYS[1], 'state', 'owner', 'epoch', 'lane')
if f[1] ~= 'running' or f[2] ~= ARGV[2] or f[3] ~= ARGV[3] then return '' end
local lane = string.gsub(f[4], '%.quarantine%-?%d*$', '') .. '.quarantine'
redis.call('HSET', KEYS[1], 'earlier', known['letter'])
if lane == f[4] then return '' end
redis.call('HSET', KEYS[1], 'lane', lane, 'state', 'queued', 'owner', '',
  'queued', string.format('%.6f', now))
redis.call('ZREM', KEYS[2], ARGV[1])
redis.call('ZADD', KEYS[3], string.format('%.6f', now), ARGV[1])
if redis.call('EXISTS', KEYS[4]) == 1 then redis.call('HINCRBY', KEYS[4], 'running', -1) end
budget_settle(KEYS[4], KEYS[1], {'0', 0}, now)
return known['letter']
