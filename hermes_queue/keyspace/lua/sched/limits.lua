-- @include sched/shut
-- What was shut at a limit and may be open again, and a job that waits in a lane.
local LOOKED_AT = 50  -- limits that a call looks at
local STEPS = 100  -- to the next job of a lane
local SHUT = 10  -- ways to jobs that may not begin, on the way to it

local function still_exhausted(name)
  local kind, of = string.match(name, '^(%a+)|(.*)$')
  local row, count = redis.call('HGET', sched, name) or nil, nil
  if kind == 'run' then
    local r = hash(prefix .. 'run:' .. of, 'running', 'max_running')
    count = tonumber(r.running or '') or 0
    if r.max_running and count >= tonumber(r.max_running) then return true end
  else
    count = tonumber(redis.call('HGET', running, name) or '') or 0
  end
  return row and is_exhausted(name, row, count)
end

local function look_at_limits()
  for _, name in ipairs(redis.call('ZRANGE', blocked, 0, LOOKED_AT - 1)) do
    local whole, is_full = pcall(still_exhausted, name)
    if not (whole and is_full) and not pcall(reopen, name, 100) then
      redis.call('DEL', prefix .. 'sched:blocked:' .. name)
    end
    if redis.call('EXISTS', prefix .. 'sched:blocked:' .. name) == 1 then
      redis.call('ZADD', blocked, stamp(now), name)
    else
      redis.call('ZREM', blocked, name)
    end
  end
end

-- The first child of a node, or the first job of a leaf. Entries of a leaf that are no ids are removed: a message
-- with one could not be read.
local function first_below(key, is_leaf)
  local found = healing('ZRANGE', key, 0, is_leaf and STEPS or 0)
  for _, name in ipairs(found) do
    if not is_leaf or is_job(name, 'any', '1', '0') then return name end
    redis.call('ZREM', key, name)
  end
end

-- The limit at which nothing of a leaf may begin, or nil.
local function limit_of(leaf)
  local lane, team, run_id, env = parts_of_leaf(leaf)
  if not lane then return nil end
  for _, name in ipairs({'team|' .. team, 'run|' .. run_id, 'env|' .. env}) do
    local whole, is_full = pcall(still_exhausted, name)
    if whole and is_full then return name end
  end
end

-- The next job of a lane and the number of jobs in its leaf, or nil. Nodes that are open and have nothing below, or
-- nothing that may begin, are shut on the way: for those, messages would be sent in vain.
local function any_job(lane)
  local node, depth, shut = lane, 1, 0
  for _ = 1, STEPS do
    local key = depth == 4 and jobs_of(node) or open_set(node)
    local found = first_below(key, depth == 4)
    local limit = depth == 4 and found and shut < SHUT and limit_of(node)
    if limit then
      shut_at(limit, node)
      node, depth, shut = lane, 1, shut + 1
    elseif depth == 4 and found then
      return found, redis.call('ZCARD', key)
    elseif found then
      node, depth = node .. '|' .. found, depth + 1
    else
      if depth == 1 then return nil end
      local above, child = string.match(node, '^(.*)|([^|]*)$')
      shut_child(above, child)
      node, depth = lane, 1
    end
  end
end
