-- Keep the verdict of a probe of an endpoint and model, for other workers.
--
-- @key probe = probe:{hash}  endpoint, model, verdict
-- @arg endpoint, model, verdict
-- @arg ttl_s  how long it is valid
-- The last verdict wins. Returns 1.
redis.call('HSET', probe, 'endpoint', endpoint, 'model', model, 'verdict', verdict)
redis.call('PEXPIRE', probe, math.max(1, math.ceil(1000 * tonumber(ttl_s))))
return 1
