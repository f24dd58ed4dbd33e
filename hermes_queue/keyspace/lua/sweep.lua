-- include: budget
-- include: totals
-- include: deaths
-- include: clock
-- include: entries
-- Take back the jobs whose lease has expired and queue them again, in one step.
--
-- KEYS[1] leases  KEYS[2] delayed  KEYS[3] sweep:last
-- KEYS[4] totals  KEYS[5] lanes  KEYS[6...] other zsets of times
-- ARGV[1] prefix  ARGV[2] least seconds between two sweeps of the fleet
-- ARGV[3] gap, s: with no sweep for that long Redis or the whole fleet was away. Owners
--         that live had no chance to renew, so they get one: every lease lasts for the
--         grace at least, and none is taken. When the server's clock was set back every lease
--         lasts for the grace, however long it seemed to. Leases of score 0 are of workers that
--         are known to be dead: they are not extended.
-- ARGV[4] grace, s  ARGV[5] most jobs per call  ARGV[6] deaths after which a job moves to
-- quarantine: into a batch that is smaller than what died with it, at last alone. Deaths alone
-- are counted apart: only they are surely the job's own. The death of a worker that was told to
-- go, or of which only its whole host knew, is held against nobody.
-- When the server's clock was set back all that waits for a time waits as long as before.
-- Returns {swept now? 1/0, {entries that are no jobs: they are taken out}, ids taken back ...}.
local t = redis.call('TIME')
local now = tonumber(t[1]) + tonumber(t[2]) / 1e6
local stamp = string.format('%.6f', now)
local last = tonumber(redis.call('GET', KEYS[3]) or '0')
local set_back = now < last
if not set_back and now - last < tonumber(ARGV[2]) then return {0, {}} end
redis.call('SET', KEYS[3], stamp, 'EX', 86400)
if set_back or now - last > tonumber(ARGV[3]) then
  local grace = string.format('%.6f', now + tonumber(ARGV[4]))
  for _, id in ipairs(redis.call('ZRANGEBYSCORE', KEYS[1], '(0', set_back and '+inf' or grace)) do
    redis.call('ZADD', KEYS[1], grace, id)
  end
  if set_back then
    local step = last - now
    set_back_scores(KEYS[2], step)
    for i = 6, #KEYS do set_back_scores(KEYS[i], step) end
    for _, lane in ipairs(redis.call('ZRANGE', KEYS[5], 0, -1)) do
      set_back_fields(ARGV[1] .. 'lane:' .. lane, {'opened', 'until', 'probe'}, step)
      redis.call('DEL', ARGV[1] .. 'lane:' .. lane .. ':outcomes')
    end
  end
  return {1, {}}
end
local expired = redis.call('ZRANGEBYSCORE', KEYS[1], '-inf', stamp, 'LIMIT', 0, ARGV[5])
local prefix, patience, limit = ARGV[1], tonumber(ARGV[4]), tonumber(ARGV[6])
if #expired > 0 then  -- how many jobs share each death; younger leases of the same owner end later
  local shared, dead = {}, {}
  for _, id in ipairs(expired) do
    local owner = fields_of(prefix .. 'traj:' .. id, 'owner')[1]
    if owner and owner ~= '' then dead[owner] = true end
  end
  for _, id in ipairs(redis.call('ZRANGE', KEYS[1], 0, -1)) do
    local owner = fields_of(prefix .. 'traj:' .. id, 'owner')[1]
    if owner and dead[owner] then shared[owner] = (shared[owner] or 0) + 1 end
  end
  for owner, n in pairs(shared) do
    local life = prefix .. 'life:' .. owner
    if n > tonumber(redis.call('HGET', life, 'shared') or '0') then
      redis.call('HSET', life, 'shared', n)
      if redis.call('TTL', life) < 0 then redis.call('EXPIRE', life, 86400) end
    end
  end
end
local function take_back(id, key)
  settle_doubts(prefix, key, patience, limit)
  local d = redis.call('HMGET', key, 'lane', 'owner', 'stage', 'died')
  local how = death_of(prefix, d[2], patience)
  local size = tonumber(redis.call('HGET', prefix .. 'life:' .. d[2], 'shared') or '1')
  local said = size > 1 and ' among ' .. size or ''
  if string.sub(d[1], -11) == '.quarantine' then said = said .. ' quarantine' end
  if how == 'told' then
    said = said .. ' told to go'
  elseif how == 'unknown' then
    said = said .. ' maybe with its host'
    doubt(prefix, key, d[2], d[1], now, patience)
  else
    hold_against(key, d[1], size, how, limit)
  end
  redis.call('HSET', key, 'died', newest_lines((d[4] or '') .. string.format('%.0f', now) .. ' ' .. d[2]
    .. ' ' .. (d[3] or 'unknown') .. said .. '\n'))
  local run = prefix .. 'run:' .. string.match(id, '^(.*)%.[^.]*%.[^.]*$')
  if redis.call('EXISTS', run) == 1 then redis.call('HINCRBY', run, 'running', -1) end
  budget_settle(run, key, nil, now)
  total(KEYS[4], 1, 'lease_expiries')
end
local taken = {1, {}}
for _, id in ipairs(expired) do
  local key = prefix .. 'traj:' .. id
  redis.call('ZREM', KEYS[1], id)
  local f = fields_of(key, 'state', 'lane', 'attempt', 'epoch', 'owner')
  if f[1] == 'running' then
    if is_job(id, f[2], f[3], f[4]) and f[5] then
      -- Its place first: a sum that somebody has made unusable must not take it away.
      redis.call('HSET', key, 'state', 'queued', 'queued', stamp)
      redis.call('ZADD', KEYS[2], stamp, id)
      local whole = pcall(take_back, id, key)
      redis.call('HSET', key, 'owner', '')
      taken[#taken + 1] = id
      if not whole then table.insert(taken[2], id) end
    else
      table.insert(taken[2], id)
    end
  end
end
return taken
