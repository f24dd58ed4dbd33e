-- The consequences of an expired lease for its owner and its job.

-- Note how many jobs share each death now: later leases of the same owner have not expired yet.
local function note_shared(expired)
  local shared, dead = {}, {}
  for _, id in ipairs(expired) do
    local owner = fields_of(prefix .. 'traj:' .. id, 'owner').owner
    if owner and owner ~= '' then dead[owner] = true end
  end
  for _, id in ipairs(redis.call('ZRANGE', leases, 0, -1)) do
    local owner = fields_of(prefix .. 'traj:' .. id, 'owner').owner
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

-- Judge the death of its owner, and write it down.
local function judge(traj, job)
  local patience, limit = tonumber(grace_s), tonumber(quarantine_deaths)
  settle_doubts(prefix, traj, patience, limit)
  local lane = redis.call('HGET', traj, 'lane')  -- maybe another one by now
  local how = death_of(prefix, job.owner, patience)
  local size = tonumber(redis.call('HGET', prefix .. 'life:' .. job.owner, 'shared') or '1')
  local note = size > 1 and ' among ' .. size or ''
  if string.sub(lane, -11) == '.quarantine' then note = note .. ' quarantine' end
  if how == 'shutdown' then
    note = note .. ' shutting down'
  elseif how == 'unknown' then
    note = note .. ' maybe with its host'
    doubt(prefix, traj, job.owner, lane, now, patience)
  else
    hold_against(traj, lane, size, how, limit)
  end
  redis.call('HSET', traj, 'died', newest_lines((job.died or '') .. string.format('%.0f', now) .. ' ' .. job.owner
    .. ' ' .. (job.stage or 'unknown') .. note .. '\n'))
end

-- Settle the reservation of the attempt.
local function settle_death(id, traj, job)
  local run = prefix .. 'run:' .. run_of(id)
  if redis.call('EXISTS', run) == 1 then
    redis.pcall('HINCRBY', run, 'running', -1)  -- as in `budget_book`
    local held_s = stamp(leased_s(job.begun, now))
    charge(prefix, run_of(id), redis.call('TTL', run), 's|death', held_s, now)
    redis.call('HSET', traj, 'lost', table.concat({job.epoch, job.owner, job.begun or '0', held_s}, ' '))
  end
  local whole, noted = pcall(cjson.decode, job.journal == job.epoch and job.noted or '')
  budget_settle(run, traj, nil, now, whole and type(noted) == 'table' and noted or nil)
  total(totals, 1, 'lease_expiries')
end
