-- Jobs whose ids, numbers or group do not fit; if there are any, nothing of the call is applied.

local begun = {}
-- Size, samples and policy of the job's group if it has begun; else those of the job itself.
local function begun_with(job, digest)
  local g = begun[job.group_id]
  if g then return g end
  g = hash(prefix .. 'group:' .. job.group_id, 'size', 'planned', 'policy', 'refills', 'requeues', 'closed')
  if g.planned then g.planned = string.format('%.0f', g.planned - (g.refills or 0) - (g.requeues or 0)) end
  if not g.size or g.closed and not any_claimed(digest, job.planned) then
    g = {size = job.size, planned = job.planned, policy = job.policy}
  end
  begun[job.group_id] = g
  return g
end

-- An error reply, or nil.
local function misfit(job)
  local id, group_id = job.id, job.group_id
  local digest, index = string.match(job.claim, '^([^.]+)%.(%d+)$')
  if not digest or group_id ~= run_id .. '.' .. digest or id ~= group_id .. '.' .. index then
    return redis.error_reply('IDS ' .. id .. ' is no <run>.<digest>.<sample> of run ' .. run_id)
  end
  local wrong = refused_number({{'group size', job.size, 1, 4096, true}, {'priority', job.priority, 0, 9, true},
    {'samples planned', job.planned, tonumber(job.size) or 1, 4096, true}})
  if wrong then return wrong end
  if tonumber(index) >= tonumber(job.planned) then
    return redis.error_reply('SAMPLE ' .. id .. ' is beyond the ' .. job.planned .. ' of its group')
  end
  local g = begun_with(job, digest)
  for _, name in ipairs({'size', 'planned', 'policy'}) do
    if g[name] and g[name] ~= job[name] then
      return redis.error_reply('GROUP' .. string.upper(name) .. ' ' .. group_id .. ' ' .. g[name])
    end
  end
end
