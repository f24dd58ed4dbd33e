-- @include hash
-- What the death of a worker says of the jobs that it ran.
--
-- life:{owner} (hash, kept for a day): boot = how its host names the time since it was started,
-- seen = its last beat, told = '1' once it was told to go (SIGTERM), outlived = '1' once a
-- process of the same boot has found it dead, witnessed = '1' once its parent has, shared = how
-- many jobs were leased to it when the first of these leases ended.
-- boot:{id} = the last beat of any worker of that boot.
-- A worker that lives and beats may leave a lease to lapse all the same: what follows the attempt
-- fails whenever it is tried. That counts like a death that its parent saw, once the worker has beaten
-- before and after; one that was silent at the time was stopped, and nothing is held against its jobs.
local LINES_MOST = 32  -- deaths and doubts that are kept of one job, the newest
local QUARANTINE = '^(.*)%.quarantine%-?(%d*)$'
local SIZES = {64, 16, 4}  -- of batches in quarantine; after the last a job runs alone

-- How a worker died: told (it was told to go), unknown (maybe with its host: nobody of that boot
-- has been heard of since), died (its host lives on), seen (its parent lives on). Of a worker that
-- said nothing of itself the worst is believed. `patience`, s: by how much a beat of the host must
-- be younger than its own last one.
local function death_of(prefix, owner, patience)
  local life = hash(prefix .. 'life:' .. owner, 'boot', 'seen', 'told', 'outlived', 'witnessed')
  if life.told then return 'told' end
  if life.witnessed or not life.boot then return 'seen' end
  if life.outlived then return 'died' end
  local beat = tonumber(redis.call('GET', prefix .. 'boot:' .. life.boot) or '0')
  return beat > tonumber(life.seen) + patience and 'died' or 'unknown'
end

-- Count one death that `size` jobs shared; move the job to quarantine, or to a smaller batch there.
local function hold_against(key, lane, size, how, limit)
  local base, most = string.match(lane, QUARANTINE)
  if most == '' then
    redis.call('HINCRBY', key, how == 'seen' and 'quarantine_deaths' or 'unseen_deaths', 1)
    return
  end
  if not base then
    if redis.call('HINCRBY', key, 'deaths', 1) < limit then return end
    base = lane
  end
  size = math.min(size, tonumber(most) or size)
  for _, smaller in ipairs(SIZES) do
    if smaller < size then
      redis.call('HSET', key, 'lane', base .. '.quarantine-' .. smaller)
      return
    end
  end
  redis.call('HSET', key, 'lane', base .. '.quarantine')
end

local function newest_lines(text)
  local lines = {}
  for line in string.gmatch(text, '[^\n]*\n') do lines[#lines + 1] = line end
  return table.concat(lines, '', math.max(1, #lines - LINES_MOST + 1))
end

-- Note a death of which too little is known: `owner lane [bs]<when>`, b = it had just beaten, s = it was silent.
local function doubt(prefix, key, owner, lane, now, patience)
  local seen = tonumber(redis.call('HGET', prefix .. 'life:' .. owner, 'seen') or '')
  local beating = seen and now - seen < patience
  redis.call('HSET', key, 'doubts', newest_lines((redis.call('HGET', key, 'doubts') or '')
    .. owner .. ' ' .. lane .. ' ' .. (beating and 'b' or 's') .. string.format('%.6f', now) .. '\n'))
end

-- The same for deaths of which too little was known when they were found, as far as it is now.
local function settle_doubts(prefix, key, patience, limit)
  local doubts = redis.call('HGET', key, 'doubts')
  if not doubts then return end
  local left = {}
  for owner, lane, was, at in string.gmatch(doubts, '(%S+) (%S+) ?([bs]?)(%S*)\n') do
    local life = hash(prefix .. 'life:' .. owner, 'shared', 'seen', 'told')
    local size = tonumber(life.shared or '')
    local how = size and death_of(prefix, owner, patience)  -- else it is too long ago to be told
    if size and tonumber(at) and (tonumber(life.seen or '') or 0) > tonumber(at) then  -- it lives
      how, size = was == 'b' and not life.told and 'seen' or 'told', 1
    end
    if how == 'unknown' then
      left[#left + 1] = owner .. ' ' .. lane .. ' ' .. was .. at .. '\n'
    elseif (how == 'died' or how == 'seen') and redis.call('HGET', key, 'lane') == lane then
      hold_against(key, lane, size, how, limit)
    end
  end
  redis.call('HSET', key, 'doubts', table.concat(left))
end
