-- The job that a call is about, named or chosen.
local ASIDE = 16  -- jobs that one call sets aside
local REST_S = 5  -- for which a leaf of which a job was held is not opened by `sched_tick`
local IS_ASIDE = {held = true, paused = true, paced = true, over_budget = true, cancelled = true}

-- Have all names in this script be those of another job.
local function turn_to(chosen)
  if chosen.id == id then return end
  id = chosen.id
  traj, group = prefix .. 'traj:' .. id, prefix .. 'group:' .. (chosen.group_id or group_of(id))
  run = prefix .. 'run:' .. (chosen.run_id or run_of(id))
end

-- The job that is next in the lanes, as which all that follows is meant; nil = the named one. Errors of the scheduler's
-- own keys (of another type, which a producer could write) keep no job from beginning: then messages stand for the jobs
-- that they name.
local function next_choice()
  local is_sound, chosen = true, nil
  if #lanes > 0 then is_sound, chosen = pcall(choice) end
  if not (is_sound and chosen) then return nil end
  turn_to(chosen)
  attempt = chosen.job.attempt or attempt
  return chosen
end

-- Shut the way to a leaf that has no more jobs.
local function close_leaf(leaf)
  local lane, team, run_id, env = parts_of_leaf(leaf)
  if not lane or redis.call('EXISTS', jobs_of(leaf)) == 1 then return end
  close_way({lane = lane, team = team, run_id = run_id, env = env})
end

local function withdraw(chosen, job)
  if chosen and chosen.leaf and pcall(leave, chosen) then return end
  take_out(job.leaf, id)
  if job.leaf then pcall(close_leaf, job.leaf) end
end

-- What holds a job back for a while (its run's budget, too many results) does so with the others of its leaf: that is shut
-- until the job is due again, or `sched_tick` visits it some seconds later. Else each of them would be held in its turn,
-- again and again.
local function rest(way)
  if not (way and way.leaf) then return end
  local step = steps_of(way)[1]
  if not pcall(shut_child, step[1], step[2]) then return end
  local key = prefix .. 'sched:blocked:held|' .. way.leaf
  redis.call('SADD', key, way.leaf)
  redis.call('EXPIRE', key, REST_S)
end

local function account(chosen, job, leaf)
  if chosen then
    pcall(charge, chosen)
  else
    pcall(charge_named, leaf)
  end
  withdraw(chosen, job)
end

-- The answer of `make`. If a key of the chosen job or of its run, which its producer writes, is junk, it is
-- taken out of its leaf before the error is answered: else it would be chosen again, and no other would begin.
local function without_junk(make, chosen, job)
  local whole, answer = pcall(make)
  if whole then return answer end
  local text = type(answer) == 'table' and answer.err or tostring(answer)
  local is_passing = false  -- an error of Redis itself, which says nothing about the job
  for _, word in ipairs({'OOM', 'READONLY', 'MISCONF', 'NOREPLICAS', 'MASTERDOWN', 'NOPERM', "can't"}) do
    is_passing = is_passing or string.find(text, word, 1, true)
  end
  if chosen and not is_passing then withdraw(chosen, job) end
  return type(answer) == 'table' and answer or redis.error_reply(text)
end
