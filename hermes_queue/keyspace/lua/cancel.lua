-- include: numbers
-- Cancel single trajectories and whole groups: each ends as a failure of the cause `cancelled`, which
-- counts in its group like any other failure that no refill makes good, so that the group can close.
--
-- KEYS[1] delayed  KEYS[2] waiting  KEYS[3] waiting:retry
-- ARGV[1] prefix  ARGV[2] reason  ARGV[3] '1' = only what waits  ARGV[4] number of groups
-- ARGV[5...] group ids, then pairs of trajectory id and attempt; of another attempt than this it
-- is left alone, '' = whatever attempt it is at
-- One that waits, or is parked because its run is paused, is due at once; whoever takes it publishes
-- its end. Owners of running ones learn of it with their next beat. Samples of a group that are
-- enqueued later end likewise. May be repeated.
-- Returns a flat list of trajectory id (of a group that is unknown or closed the group id), and
-- waiting | running | final | cancelled | surplus | closed | unknown.
local refused = refused_number({{'number of groups', ARGV[4], 0, #ARGV - 4, true}})
if refused then return refused end
local t = redis.call('TIME')
local stamp = string.format('%.6f', tonumber(t[1]) + tonumber(t[2]) / 1e6)
local prefix, told = ARGV[1], {}
local function tell(id, state)
  told[#told + 1] = id
  told[#told + 1] = state
end
local function cancel(id, attempt)
  local key = prefix .. 'traj:' .. id
  local f = redis.call('HMGET', key, 'state', 'attempt')
  local state = f[1] or 'unknown'
  local meant = attempt == '' or attempt == f[2]
  if state == 'queued' and meant then
    state = 'waiting'
    redis.call('ZREM', KEYS[2], id)  -- first, so that a Redis that is full lets it pass, see trim.lua
    redis.call('ZREM', KEYS[3], id)
    redis.call('SREM', prefix .. 'run:' .. string.match(id, '^(.*)%.[^.]*%.[^.]*$') .. ':parked', id)
    redis.call('ZADD', KEYS[1], stamp, id)
  end
  if meant and (state == 'waiting' or state == 'running' and ARGV[3] ~= '1') then
    redis.call('HSET', key, 'cancel', ARGV[2])
  end
  tell(id, state)
end
local groups = tonumber(ARGV[4])
for i = 5, 4 + groups do
  local group = prefix .. 'group:' .. ARGV[i]
  local g = redis.call('HMGET', group, 'size', 'planned', 'closed')
  if not g[1] or g[3] then
    tell(ARGV[i], g[1] and 'closed' or 'unknown')
  else
    redis.call('HSET', group, 'cancel', ARGV[2])
    for index = 0, tonumber(g[2] or g[1]) - 1 do
      local id = ARGV[i] .. '.' .. index
      if redis.call('EXISTS', prefix .. 'traj:' .. id) == 1 then cancel(id, '') end
    end
  end
end
for i = 5 + groups, #ARGV, 2 do cancel(ARGV[i], ARGV[i + 1]) end
return told
