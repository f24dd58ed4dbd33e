-- @include time, hash, entries, healing, shared_budget
-- Put jobs back for which a shared budget has room again, or that was lifted. A batch per call.
--
-- @key budgets, held = budget-held:{name}, delayed, paced_runs = paced
-- @arg prefix, name
-- @arg most  jobs
-- @answer moved, left  jobs that are due now, and those that still wait
local lifted = redis.call('HEXISTS', budgets, name) == 0
local a, planned, moved = shared_account(name), {}, 0
for _, id in ipairs(redis.call('ZRANGE', held, 0, tonumber(most) - 1)) do
  local traj = prefix .. 'traj:' .. id
  local job = fields_of(traj, 'state', 'cancel', 'job', 'room')
  if job.state == 'queued' and not job.cancel then
    local want = shared_want(a, (shared_facts(job.job)))
    if not lifted and shared_full(a, want, planned) then break end
    for amount, by in pairs(want) do planned[amount] = (planned[amount] or 0) + by end
    healing('ZADD', delayed, stamp(now + moved * 1e-6), id)  -- in their order
    -- Beside those of others: if each sent it to the end of the other's queue, it would never begin.
    local room = #(job.room or '') < 1000 and job.room or ''
    if not string.find(' ' .. room .. ' ', ' ' .. name .. ' ', 1, true) then
      redis.call('HSET', traj, 'room', room == '' and name or room .. ' ' .. name)
    end
    moved = moved + 1
  end
  redis.call('ZREM', held, id)
end
local left = redis.call('ZCARD', held)
if left == 0 then redis.call('ZREM', paced_runs, BUDGET_MARK .. name) end
return {moved, left}
