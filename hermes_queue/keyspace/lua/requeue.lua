-- @include time, healing, budget_settle, totals, numbers, hash, journal, sched/freed
-- The current owner hands a job back: for a retry (attempt + 1), or unchanged (attempt stays).
--
-- @key traj = traj:{id}, leases, delayed, run = run:{run_id}, totals
-- @arg prefix, id, owner, epoch
-- @arg attempts_added  0 or 1
-- @arg delay_s
-- @arg facts  record of the failed attempt (JSON) or ''
-- @arg used_s  seconds of the total deadline that this attempt used
-- @arg cost_usd, tokens  spent by this attempt; cost '' = unknown
-- @arg transcript  of the failed attempt (packed, without tab and newline) or ''
-- @arg continued  '1' = `tokens` include what is not booked of the turns in the journal
-- @arg lost  '1' = the work that was handed over is lost: its agent begins anew, in the lane of agents
-- @arg evidence_bytes  size limit of the transcripts of all failed attempts; the newest are kept
-- @answer verdict, warning  ok | stale, and a warning about the run's budget or ''
local refused = refused_number({{'attempts added', attempts_added, 0, 1, true}, {'delay, s', delay_s, 0, 1e9},
  {'seconds used', used_s, 0, 1e9}, {'cost, USD', cost_usd == '' and '0' or cost_usd, 0, 1e9},
  {'tokens', tokens, 0, 1e15, true}, {'bytes of transcripts', evidence_bytes, 0, EXACT}})
if refused then return refused end
local job = hash(traj, 'state', 'owner', 'epoch', 'journal', 'handed', 'lane', 'leaf', 'attempt')
if job.state ~= 'running' or job.owner ~= owner or job.epoch ~= epoch then return {'stale', ''} end
local decoded = facts ~= '' and cjson.decode(facts) or {}
redis.call('ZREM', leases, id)
local due = stamp(now + tonumber(delay_s))
healing('ZADD', delayed, due, id)
redis.call('HSET', traj, 'state', 'queued', 'owner', '', 'queued', stamp(now), 'due', due, 'leaf', '')
freed(job.leaf)
local attempt = string.find(job.attempt or '', '^%d+$') and #job.attempt < 16 and tonumber(job.attempt) or 1
redis.call('HSET', traj, 'attempt', string.format('%.0f', attempt + tonumber(attempts_added)))
-- An attempt that has failed is not continued: what it did to its slot may be why.
if attempts_added ~= '0' then drop_journal(prefix, traj, id, job)
elseif job.journal and (continued == '1' or job.journal == epoch) then redis.call('HSET', traj, 'booked', epoch) end
if lost == '1' and job.lane then
  drop_handover(prefix, traj, id, job)
  redis.call('HSET', traj, 'lane', (string.gsub(job.lane, '%.verify(%.quarantine.*)$', '%1'):gsub('%.verify$', '')))
end
if redis.call('EXISTS', run) == 1 then redis.pcall('HINCRBY', run, 'running', -1) end  -- as in `budget_book`
redis.pcall('HINCRBYFLOAT', traj, 'used', used_s)
if facts ~= '' then
  local lines, left = {}, tonumber(evidence_bytes)
  for line in string.gmatch(redis.call('HGET', traj, 'attempts') or '', '[^\n]+') do
    lines[#lines + 1] = line
  end
  lines[#lines + 1] = facts .. (transcript ~= '' and '\t' .. transcript or '')
  for i = #lines, 1, -1 do
    local tab = string.find(lines[i], '\t', 1, true)
    if tab then
      left = left - (#lines[i] - tab)
      if left < 0 then lines[i] = string.sub(lines[i], 1, tab - 1) end
    end
  end
  redis.call('HSET', traj, 'attempts', table.concat(lines, '\n'))
  local failure = decoded['failure'] or {}
  total(totals, 1, 'retries', failure['cause'])
end
total_spent(totals, cost_usd, tokens)
return {'ok', budget_settle(run, traj, {cost_usd, tokens}, now)}
