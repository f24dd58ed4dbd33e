-- What was shut at a limit and may be open again, and a job that waits in a lane.
local LOOKED_AT = 50  -- limits that a call looks at
local STEPS = 100  -- to the next job of a lane

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

-- The next job of a lane and the number of jobs in its leaf, or nil. Nodes that are open and have nothing below are
-- shut on the way.
local function any_job(lane)
  local node, depth = lane, 1
  for _ = 1, STEPS do
    local key = depth == 4 and jobs_of(node) or open_set(node)
    local found = first_below(key, depth == 4)
    if depth == 4 and found then return found, redis.call('ZCARD', key) end
    if found then
      node, depth = node .. '|' .. found, depth + 1
    else
      if depth == 1 then return nil end
      local above, child = string.match(node, '^(.*)|([^|]*)$')
      shut_child(above, child)
      node, depth = lane, 1
    end
  end
end
