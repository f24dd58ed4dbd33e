-- @include time, entries, ids, healing, totals, sched/tree, recover/places
-- Look through all trajectories, a part with each call, for jobs that are queued and stand nowhere, and for running
-- ones without a lease: another program has emptied or removed a key that they stood in. They are due again, or have
-- a lease again, which ends unless their owner renews it.
--
-- @key recovery  hash: at (time of the last look), cursor, hurried ('1' = a key was removed: until a round is whole)
-- @key junk  name of the last key that was removed, see include/healing.lua
-- @key delayed, waiting, leases, paced_runs = paced, totals
-- @arg prefix, lease_s
-- @arg every_s  between two looks in the whole fleet, unless it is hurried
-- @arg most  about as many keys of all kinds are looked at
-- @answer removed  name of a key that was removed lately, or ''
-- @answer found  ids
-- @answer more  1 = call again
local s = fields_of(recovery, 'at', 'cursor', 'hurried')
local removed = redis.pcall('GET', junk)
if removed then
  redis.call('DEL', junk)
  removed = type(removed) == 'string' and removed or junk
  total(totals, 1, 'junk_keys')
  s = {hurried = '1'}
end
if not s.hurried and math.abs(now - (tonumber(s.at or '') or 0)) < tonumber(every_s) then return {'', {}, 0} end

local found = {}
local page = redis.call('SCAN', s.cursor or '0', 'MATCH', literal(prefix) .. 'traj:*', 'COUNT', most)
for _, key in ipairs(page[2]) do
  local id = string.sub(key, #prefix + 6)
  local job = fields_of(key, 'state', 'lane', 'attempt', 'epoch', 'leaf', 'priority')
  if not is_job(id, job.lane, job.attempt, job.epoch) then
    -- of another program
  elseif job.state == 'running' and not score_in(leases, id) then
    redis.call('ZADD', leases, stamp(now + tonumber(lease_s)), id)
    found[#found + 1] = id
  elseif job.state == 'queued' and string.find(job.priority or '', '^%d$') and not stands(id, job.leaf) then
    healing('ZADD', delayed, stamp(now), id)
    found[#found + 1] = id
  end
end
local is_whole = page[1] == '0'
redis.call('HSET', recovery, 'at', stamp(now), 'cursor', page[1])
if s.hurried and not is_whole then redis.call('HSET', recovery, 'hurried', '1') else redis.call('HDEL', recovery, 'hurried') end
redis.call('EXPIRE', recovery, 86400)
return {removed or '', found, s.hurried and not is_whole and 1 or 0}
