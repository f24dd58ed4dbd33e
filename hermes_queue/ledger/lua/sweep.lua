-- include: budget
-- include: totals
-- Take back the jobs whose lease has expired and queue them again, in one step.
--
-- KEYS[1] leases  KEYS[2] delayed  KEYS[3] sweep:last
-- KEYS[4] totals
-- ARGV[1] prefix  ARGV[2] least seconds between two sweeps of the fleet
-- ARGV[3] gap, s: with no sweep for that long Redis or the whole fleet was away. Owners
--         that live had no chance to renew, so they get one: every lease lasts for the
--         grace at least, and none is taken. When the server's clock was set back every lease
--         lasts for the grace, however long it seemed to.
-- ARGV[4] grace, s  ARGV[5] most jobs per call  ARGV[6] deaths after which a job moves to
-- the quarantine lane. Deaths there are counted apart: only they are surely the job's own.
-- Returns {swept now? 1/0, ids taken back ...}.
local t = redis.call('TIME')
local now = tonumber(t[1]) + tonumber(t[2]) / 1e6
local stamp = string.format('%.6f', now)
local last = tonumber(redis.call('GET', KEYS[3]) or '0')
local set_back = now < last
if not set_back and now - last < tonumber(ARGV[2]) then return {0} end
redis.call('SET', KEYS[3], stamp, 'EX', 86400)
if set_back or now - last > tonumber(ARGV[3]) then
  local grace = string.format('%.6f', now + tonumber(ARGV[4]))
  for _, id in ipairs(redis.call('ZRANGEBYSCORE', KEYS[1], '-inf', set_back and '+inf' or grace)) do
    redis.call('ZADD', KEYS[1], grace, id)
  end
  return {1}
end
local expired = redis.call('ZRANGEBYSCORE', KEYS[1], '-inf', stamp, 'LIMIT', 0, ARGV[5])
local taken = {1}
for _, id in ipairs(expired) do
  local key = ARGV[1] .. 'traj:' .. id
  redis.call('ZREM', KEYS[1], id)
  if redis.call('HGET', key, 'state') == 'running' then
    local d = redis.call('HMGET', key, 'lane', 'owner', 'stage', 'died')
    local alone = string.sub(d[1], -11) == '.quarantine'
    local deaths = redis.call('HINCRBY', key, alone and 'quarantine_deaths' or 'deaths', 1)
    redis.call('HSET', key, 'died', (d[4] or '') .. string.format('%.0f', now) .. ' ' .. d[2]
      .. ' ' .. (d[3] or 'unknown') .. (alone and ' quarantine' or '') .. '\n')
    if not alone and deaths >= tonumber(ARGV[6]) then
      redis.call('HSET', key, 'lane', d[1] .. '.quarantine')
    end
    redis.call('HSET', key, 'state', 'queued', 'owner', '', 'queued', stamp)
    redis.call('ZADD', KEYS[2], stamp, id)
    local run = ARGV[1] .. 'run:' .. string.match(id, '^(.*)%.[^.]*%.[^.]*$')
    if redis.call('EXISTS', run) == 1 then redis.call('HINCRBY', run, 'running', -1) end
    budget_settle(run, key, nil, now)
    total(KEYS[4], 1, 'lease_expiries')
    taken[#taken + 1] = id
  end
end
return taken
