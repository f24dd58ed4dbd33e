-- @include time, numbers
-- Add to the fleet's counts in the current bucket of two minutes.
--
-- @arg prefix
-- @arg bucket_s  width of a bucket
-- @arg kept_s  expiry of a bucket
-- @arg counts[name, by]
-- The bucket is the hash tally:{number}. Returns its number. Repeating a call counts twice.
local checked = {{'width, s', bucket_s, 1, 1e9}, {'seconds kept', kept_s, 1, 1e9, true}}
for _, count in ipairs(counts) do checked[#checked + 1] = {count.name, count.by, -1e15, 1e15, true} end
local refused = refused_number(checked)
if refused then return refused end
local bucket = math.floor(math.floor(now) / tonumber(bucket_s))
local key = prefix .. 'tally:' .. string.format('%.0f', bucket)
for _, count in ipairs(counts) do redis.call('HINCRBY', key, count.name, count.by) end
redis.call('EXPIRE', key, kept_s)
return bucket
