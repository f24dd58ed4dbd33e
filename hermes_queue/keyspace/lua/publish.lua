-- @include time, hash, numbers, entries, healing, lives, publish/body, publish/settle, publish/group, publish/accept
-- @include publish/letter, publish/another, publish/decide, publish/close
-- Make one trajectory final, exactly once; if that decides its group, close the group.
--
-- @key traj = traj:{id}, leases, delayed, waiting, group = group:{group_id}
-- @key run = run:{run_id}, parked = run:{run_id}:parked, failed = failed:{run_id}, purged = purged:{run_id}
-- @key ahead = run:{run_id}:ahead, held = run:{run_id}:held
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

local refused = refused_number({{'epoch', epoch, 1, EXACT, true}, {'score', has_score and score or '0', -1e308, 1e308},
  {'sample index', sample_index, 0, EXACT, true}, {'TTL of finished state, s', finished_ttl_s, 1, 1e9, true},
  {'most groups', hard_max_groups, 0, EXACT}, {'most bytes', hard_max_bytes, 0, EXACT},
  {'cost, USD', cost_usd == '' and '0' or cost_usd, 0, 1e9}, {'tokens', tokens, 0, 1e15, true},
  {'policy version', policy_oldest == '' and '0' or policy_oldest, -EXACT, EXACT, true}})
if refused then
  without_body()
  return refused
end
local described = failure ~= '' and cjson.decode(failure) or {}
local job = hash(traj, 'state', 'owner', 'epoch', 'floor', 'lane', 'priority', 'job', 'reserved', 'journal', 'begun',
  'shared', 'handed', 'leaf')
local verdict = is_missing and 'unstored' or verdict_without_group(job)
if verdict then return without_body(verdict) end
local facts = read_group()
verdict = refusal(job, facts)
if verdict then return without_body(verdict) end

local own_name = body_name(id, job.floor)
keep_body(own_name)
if described.dead then
  local letter = write_letter(job, facts, described)
  if described.item then remember_item(letter, described) end
  if described.task then count_deaths(described) end
end
count('settled')
local warning = settle(traj, id, job, 'final', {cost_usd, tokens})
count_end(facts, described)
add_member(facts, own_name, job.held_s)
refill_or_keep(job, facts, described)
local is_outdated = evict_stale(job, facts, own_name)

local group_end = decide(facts)
if not group_end then
  if not is_outdated then keep_summary() end
  return {is_outdated and 'outdated' or 'ok', warning}
end
local revoked = gather(facts, group_end)
return {close(facts, group_end), warning ~= '' and warning or revoked}
