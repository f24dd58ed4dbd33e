-- @include sched/tree, sched/usage, sched/rows, begin/lanes, begin/blocked, begin/ready
-- Which of the waiting jobs a message stands for: it says only that there are some.
local TRIES = 12  -- jobs that are gone, and leaves in which none may begin, that one call looks at
local TOOK_TTL_S = 86400

-- The next child, and whether there are others.
local function first_of(key)
  local found = healing('ZRANGE', key, 0, 1)
  return found[1], found[2]
end

-- The next way to jobs, nil if there is none.
local function way_to(lane)
  for _ = 1, TRIES do
    local team, others = first_of(open_set(lane))
    if not team then return nil end
    local in_team = lane .. '|' .. team
    local run_id, more = first_of(open_set(in_team))
    if not run_id then shut_child(lane, team) else
      local in_run = in_team .. '|' .. run_id
      local env, most = first_of(open_set(in_run))
      if not env then shut_child(in_team, run_id) else
        return {lane = lane, team = team, run_id = run_id, env = env, leaf = in_run .. '|' .. env,
          competes = others or more or most}
      end
    end
  end
end

-- Close the way behind the last job of its leaf.
local function close_way(way)
  for _, step in ipairs(steps_of(way)) do
    shut_child(step[1], step[2])
    if redis.call('EXISTS', open_set(step[1])) == 1 then return end
  end
end

local function leave(way)
  take_out(way.leaf, way.id)
  if way.is_last then close_way(way) end
end

-- A way with the next job of a lane that may begin, or nil.
local function next_of(lane)
  for _ = 1, TRIES do
    local way = way_to(lane)
    if not way then return nil end
    local ids = healing('ZRANGE', jobs_of(way.leaf), 0, 1)
    way.id, way.is_last = ids[1], #ids < 2
    if not way.id then close_way(way) else
      local whole, r = pcall(accounts, prefix .. 'run:' .. way.run_id, 'max_running')
      way.r = whole and r
      local is_bounded = has_limits or way.r and way.r.max_running
      if not (whole and is_bounded and block(way)) then
        if whole and is_right(way) then return looks_further(way) and ready_one(way) or way end
        leave(way)  -- it has ended, or runs, since; or a key of its own, which its producer writes, is junk
      end
    end
  end
end

-- What this call has taken before, if its answer was lost: {id, job}.
local function taken_before()
  local text = redis.call('HGET', took, slot)
  if not text or string.sub(text, 1, #nonce + 1) ~= nonce .. ' ' then return nil end
  local id = string.sub(text, #nonce + 2)
  local job = job_of(prefix .. 'traj:' .. id)
  if job and job.state == 'running' and job.nonce == nonce then return {id = id, job = job} end
end

local function choice()
  local before = taken_before()
  if before then return before end
  read_lanes()
  if fleet_row and is_exhausted('fleet', fleet_row, redis.call('ZCARD', leases)) then return nil end
  for _, lane in ipairs(#lanes == 1 and lanes or in_order()) do
    local way = may_serve(lane) and next_of(lane)
    if way then return way end
  end
end
