-- Jobs whose ids, numbers or group do not fit; if there are any, nothing of the call is applied.

local function wrong_id(id)
  return redis.error_reply('IDS ' .. id .. ' is no <run>.<digest>.<sample> of run ' .. run_id)
end

-- An error reply about a group's own fields, or nil. Notes its digest.
local function misfit_of_group(group)
  local start = run_id .. '.'
  group.digest = string.sub(group.id, 1, #start) == start and string.match(group.id, '^[^.]+$', #start + 1)
  if not group.digest then return wrong_id(group.id) end
  return refused_number({{'group size', group.size, 1, 4096, true},
    {'samples planned', group.planned, tonumber(group.size) or 1, 4096, true}})
end

-- An error reply about a job, or nil. Notes its group and claim.
local function misfit(job)
  local group = groups[tonumber(job.place)]
  local start = group.id .. '.'
  local sample = string.sub(job.id, 1, #start) == start and string.match(job.id, '^%d+$', #start + 1)
  if not sample then return wrong_id(job.id) end
  local wrong = refused_number({{'priority', job.priority, 0, 9, true}})
  if wrong then return wrong end
  if tonumber(sample) >= tonumber(group.planned) then
    return redis.error_reply('SAMPLE ' .. job.id .. ' is beyond the ' .. group.planned .. ' of its group')
  end
  job.group, job.claim = group, group.digest .. '.' .. sample
end

-- An error reply if the group was begun otherwise, or nil.
local function differing(group)
  local g = known_group(group)
  for _, name in ipairs({'size', 'planned', 'policy'}) do
    if g[name] and g[name] ~= group[name] then
      return redis.error_reply('GROUP' .. string.upper(name) .. ' ' .. group.id .. ' ' .. g[name])
    end
  end
end

-- The first error reply, or nil.
local function first_misfit()
  for _, each in ipairs({{groups, misfit_of_group}, {jobs, misfit}, {groups, differing}}) do
    for _, row in ipairs(each[1]) do
      local refused = each[2](row)
      if refused then return refused end
    end
  end
end
