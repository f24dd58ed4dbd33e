-- @include accounts, leased, budget_check, shared_settle
-- The budget of a run: reserved when a job begins, settled when its attempt ends.

-- As `accounts`; nil of a run whose key is no hash, too: what runs ends all the same.
local function readable_accounts(...)
  local whole, r = pcall(accounts, ...)
  return whole and r or nil
end

-- Settle an attempt that has ended, in the accounts of its run (nil = unknown run). `reserved` is what
-- was reserved for it (JSON) or nil; the caller removes it. `spent` is {cost_usd, tokens}, cost_usd '' =
-- price unknown; `held_s`: of its slot. Without `spent` the reservation counts as spent, because nothing is
-- known about the attempt, but for what its journal has `noted` (or nil): that is booked with the next one.
-- Returns a warning or ''; always '' without `spent`.
local function book(run, r, reserved, spent, now, noted, held_s)
  reserved = reserved and cjson.decode(reserved)
  for i, name in ipairs(AMOUNTS) do
    local aside = reserved and reserved[name] or 0
    local amount = math.max(0, aside - (noted and tonumber(noted[name]) or 0))
    if name == 'slot_s' then amount = held_s elseif spent then amount = tonumber(spent[i]) or 0 end
    if aside ~= 0 then redis.call('HINCRBYFLOAT', run, 'reserved:' .. name, -aside) end
    if name == 'slot_s' and r.is_saved_later then
      r['spent:slot_s'] = (tonumber(r['spent:slot_s'] or '0') or 0) + amount
    elseif amount ~= 0 then r['spent:' .. name] = redis.call('HINCRBYFLOAT', run, 'spent:' .. name, amount)
    end
  end
  if spent and spent[1] == '' then r.unpriced = redis.call('HINCRBY', run, 'unpriced', 1) end
  return is_budgeted(r) and budget_check(run, r, now, not spent) or ''
end

-- A producer could write any sums into the run: those are not kept then, and the trajectory ends all the same.
local function budget_book(run, r, ...)
  if not r then return '' end
  local whole, warning = pcall(book, run, r, ...)
  return whole and warning or ''
end
