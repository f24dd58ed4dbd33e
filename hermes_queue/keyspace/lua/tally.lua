-- include: numbers
-- Add to the fleet's counts of the current two minutes.
--
-- ARGV[1] prefix  ARGV[2] width of a bucket, s  ARGV[3] seconds that a bucket is kept
-- ARGV[4...] pairs of name, count
-- The bucket is the hash tally:{number}. Returns its number. Repeating a call counts twice.
local checked = {{'width, s', ARGV[2], 1, 1e9}, {'seconds kept', ARGV[3], 1, 1e9, true}}
for i = 4, #ARGV, 2 do checked[#checked + 1] = {ARGV[i], ARGV[i + 1], -1e15, 1e15, true} end
local refused = refused_number(checked)
if refused then return refused end
local t = redis.call('TIME')
local bucket = math.floor(tonumber(t[1]) / tonumber(ARGV[2]))
local key = ARGV[1] .. 'tally:' .. string.format('%.0f', bucket)
for i = 4, #ARGV, 2 do redis.call('HINCRBY', key, ARGV[i], ARGV[i + 1]) end
redis.call('EXPIRE', key, ARGV[3])
return bucket
