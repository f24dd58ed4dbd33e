-- @include hash
-- Consequences of a worker's death for the jobs that it ran.
--
-- life:{owner} (hash, kept for a day): boot = id of its host's boot, seen = its last beat, told = '1'
-- once it was shutting down (SIGTERM), outlived = '1' once a process of the same boot has found it
-- dead, witnessed = '1' once its parent has, parent = the worker that started it for the quarantine,
-- shared = number of jobs leased to it when the first of these leases expired.
-- boot:{id} = the last beat of any worker of that boot.
-- A living worker can let a lease expire, too: if the steps after an attempt fail every time. This
-- counts like a death that its parent saw if the worker has beaten before and after. If the worker was
-- silent at that time, it was suspended, and nothing is held against its jobs.
local LINES_MOST = 32  -- newest deaths and doubts kept per job
local QUARANTINE = '^(.*)%.quarantine%-?(%d*)$'
local SIZES = {64, 16, 4}  -- of quarantine batches; after the last one a job runs alone

-- How a worker died: shutdown (it was shutting down), unknown (maybe with its host: no worker of that
-- boot has beaten since), died (its host lives on), seen (its parent lives on). If nothing is known
-- about a worker, the worst is assumed: seen. `patience`: seconds by which a beat of the host must be
-- younger than the worker's last one.
local function death_of(prefix, owner, patience)
  local life = hash(prefix .. 'life:' .. owner, 'boot', 'seen', 'told', 'outlived', 'witnessed')
  if life.told then return 'shutdown' end
  if life.witnessed or not life.boot then return 'seen' end
  if life.outlived then return 'died' end
  local beat = tonumber(redis.call('GET', prefix .. 'boot:' .. life.boot) or '0')
  return beat > tonumber(life.seen) + patience and 'died' or 'unknown'
end

-- Count one death shared by `size` jobs; move the job to quarantine, or to a smaller batch there.
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

-- Note an unclear death: `owner lane [bs]<when>`, b = the worker had just beaten, s = it was silent.
local function doubt(prefix, key, owner, lane, now, patience)
  local seen = tonumber(redis.call('HGET', prefix .. 'life:' .. owner, 'seen') or '')
  local beating = seen and now - seen < patience
  redis.call('HSET', key, 'doubts', newest_lines((redis.call('HGET', key, 'doubts') or '')
    .. owner .. ' ' .. lane .. ' ' .. (beating and 'b' or 's') .. string.format('%.6f', now) .. '\n'))
end

-- Judge deaths that were unclear when they were found, as far as more is known now.
local function settle_doubts(prefix, key, patience, limit)
  local doubts = redis.call('HGET', key, 'doubts')
  if not doubts then return end
  local left = {}
  for owner, lane, was, at in string.gmatch(doubts, '(%S+) (%S+) ?([bs]?)(%S*)\n') do
    local life = hash(prefix .. 'life:' .. owner, 'shared', 'seen', 'told')
    local size = tonumber(life.shared or '')
    local how = size and death_of(prefix, owner, patience)  -- without `shared`: too long ago to know
    if size and tonumber(at) and (tonumber(life.seen or '') or 0) > tonumber(at) then  -- it lives
      how, size = was == 'b' and not life.told and 'seen' or 'shutdown', 1
    end
    if how == 'unknown' then
      left[#left + 1] = owner .. ' ' .. lane .. ' ' .. was .. at .. '\n'
    elseif (how == 'died' or how == 'seen') and redis.call('HGET', key, 'lane') == lane then
      hold_against(key, lane, size, how, limit)
    end
  end
  redis.call('HSET', key, 'doubts', table.concat(left))
end
