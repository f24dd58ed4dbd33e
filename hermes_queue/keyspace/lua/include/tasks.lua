-- @include time
-- What is remembered of a task: `task:{env}:{sha256}`, JSON with the names of ledger/tasks/task.py, where
-- a sum that is 0 is left out. What cannot be read, or is no number, counts as nothing.
local TASK_SUMS = {'attempts', 'scored', 'passes', 'score', 'timed', 'seconds', 'squares', 'priced', 'usd',
  'tokens', 'regraded', 'flips', 'deaths'}
local SOLVER_SUMS = {'scored', 'passes', 'score', 'timed', 'seconds'}
local CAUSES_MOST, SOLVERS_MOST, TASK_BYTES, SUM_MOST = 5, 6, 16384, 1e15

local function a_number(value)
  value = tonumber(value)
  if not value or value ~= value then return 0 end
  return math.max(-SUM_MOST, math.min(value, SUM_MOST))
end

local function a_text(value, most)
  return type(value) == 'string' and string.sub(value, 1, most) or ''
end

-- To a millionth, so that texts stay short; nil for 0.
local function added(a, b)
  local sum = math.floor((a_number(a) + a_number(b)) * 1e6 + 0.5) / 1e6
  sum = a_number(sum)
  return sum ~= 0 and sum or nil
end

-- Rows of two lists, newest first; those with the same first and second name are added up. `at`: the time of
-- the rows of each list that say none.
local function united(lists, first, second, sums, most, at)
  local rows, known = {}, {}
  for i, list in ipairs(lists) do
    for _, row in ipairs(type(list) == 'table' and list or {}) do
      row = type(row) == 'table' and row or {}
      local one, two = a_text(row[first], 240), a_text(row[second], 120)
      local kept = known[one .. '\n' .. two]
      if not kept and one ~= '' then
        kept = {[first] = one, [second] = two, last = 0}
        known[one .. '\n' .. two] = kept
        rows[#rows + 1] = kept
      end
      if kept then
        for _, name in ipairs(sums) do kept[name] = added(kept[name], row[name]) end
        local last = a_number(row.last)
        kept.last = math.max(kept.last, math.floor(last > 0 and last or at[i]))
      end
    end
  end
  table.sort(rows, function(a, b) return a.last > b.last end)
  for i = #rows, most + 1, -1 do rows[i] = nil end
  return rows[1] and rows or nil
end

local function stored_task(member)
  local raw = redis.pcall('GET', prefix .. 'task:' .. member)
  if type(raw) ~= 'string' or #raw > TASK_BYTES then return {} end
  local readable, task = pcall(cjson.decode, raw)
  return readable and type(task) == 'table' and task or {}
end

-- Add `news`, of the same form, to what is known of a task, and make it the last one to be forgotten.
local function remember_task(member, known, news, ttl_s)
  local last = math.min(now, math.max(a_number(known.last), a_number(news.last)))  -- the clock may be set back
  local begun = a_number(known.first) > 0 and a_number(known.first) or last
  local first = a_number(news.first) > 0 and a_number(news.first) or last
  local task = {first = math.floor(math.min(begun, first)), last = math.floor(last)}
  for _, name in ipairs({'id', 'version'}) do
    task[name] = a_text(news[name], 480)
    if task[name] == '' then task[name] = a_text(known[name], 480) end
  end
  for _, name in ipairs(TASK_SUMS) do task[name] = added(known[name], news[name]) end
  local at = {a_number(news.last), a_number(known.last)}  -- of rows without a time of their own
  task.causes = united({news.causes or 0, known.causes}, 'cause', 'stage', {'times'}, CAUSES_MOST, at)
  task.solvers = united({news.solvers or 0, known.solvers}, 'model', 'policy', SOLVER_SUMS, SOLVERS_MOST, at)
  -- Protected: of another type, they are statistics that get lost, and no transition that stops halfway.
  redis.pcall('SET', prefix .. 'task:' .. member, cjson.encode(task), 'EX', ttl_s)
  redis.pcall('ZADD', prefix .. 'tasks', string.format('%.6f', last), member)
end
