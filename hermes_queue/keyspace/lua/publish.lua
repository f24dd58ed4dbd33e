-- @include time, hash, numbers, healing, body_name, publish/body, publish/settle, publish/group, publish/accept
-- @include publish/letter, publish/another, publish/late, publish/decide
-- Make one trajectory final, exactly once; if that decides its group, close the group.
--
-- @key traj = traj:{id}, leases, delayed, waiting, group = group:{group_id}
-- @key run = run:{run_id}
-- @key results, unread_bytes = results:bytes  size of all bodies that wait for a reader, also of open groups
-- @key objects  see object_note.lua
-- @key dead, poison, totals, staged = staged:{token}
-- @arg prefix, id, run_id, group_id, owner, epoch
-- @arg score  '' = not measured; 'unscored' = ended well, and there is nothing to measure
-- @arg body  or its claim in the object store; '' = it was stored as `staged`
-- @arg object  the claimed object as `objects` lists it, '' = none
-- @arg sample_index, finished_ttl_s, schema_version, codec
-- @arg refillable  '1' = a failure that may be refilled
-- @arg failure  JSON of `described_failure`, '' = none
-- @arg hard_max_groups, hard_max_bytes  of the stream
-- @arg cost_usd, tokens  of the last attempt; cost '' = unknown
-- @arg policy_oldest  number of the oldest policy version that sampled, '' = unknown
-- @arg summary  JSON of a few facts of the record, for the entry of its group, '' = none
-- @answer verdict  ok | outdated | group | dropped | surplus | full | unstored | final | cancelled |
--         stale | unknown
-- @answer warning  about the run's budget or ''
-- outdated: the record is final, but too old to be a member; its group stays open.
-- group: the group was published to the stream; dropped: its policy dropped it.
-- surplus: a sample that finishes after its group closed keeps its body as an extra.
-- full: nothing was done because too many results wait for readers; unstored: nothing was done because
-- the object may have been deleted meanwhile, or `staged` has expired.

local refused = wrong_number('epoch', epoch, 1, EXACT, true)
  or has_score and wrong_number('score', score, -1e308, 1e308)
  or wrong_number('sample index', sample_index, 0, EXACT, true)
  or wrong_number('TTL of finished state, s', finished_ttl_s, 1, 1e9, true)
  or wrong_number('most groups', hard_max_groups, 0, EXACT) or wrong_number('most bytes', hard_max_bytes, 0, EXACT)
  or cost_usd ~= '' and wrong_number('cost, USD', cost_usd, 0, 1e9) or wrong_number('tokens', tokens, 0, 1e15, true)
  or policy_oldest ~= '' and wrong_number('policy version', policy_oldest, -EXACT, EXACT, true)
if refused then
  without_body()
  return refused
end
local described = failure ~= '' and cjson.decode(failure) or {}
local job = hash(traj, 'state', 'owner', 'epoch', 'floor', 'reserved', 'journal', 'begun', 'shared', 'handed', 'leaf', 'lost')
local verdict = is_missing and 'unstored' or verdict_without_group(job)
if verdict then return without_body(verdict) end
local facts = read_group()
verdict = refusal(job, facts)
if verdict then return without_body(verdict) end

local own_name = body_name(id, job.floor)
keep_body(own_name)
if refillable == '1' or described.dead or described.keep or facts.version then
  for name, value in pairs(hash(traj, 'lane', 'priority', 'job')) do job[name] = value end
end
if described.dead then keep_letter(job, facts, described) end
local warning = settle(traj, id, job, 'final', {cost_usd, tokens})
if job.lost then account_late(job) end
count_end(job, facts, described)
add_member(facts, own_name, job.held_s)
if refillable == '1' or described.keep then refill_or_keep(job, facts, described) end
local is_outdated = facts.version and evict_stale(job, facts, own_name)

local ended, revoked = decide(facts)
if not ended then return {is_outdated and 'outdated' or 'ok', warning} end
return {ended, warning ~= '' and warning or revoked}
