{% macro cdc_plan(relid, whole=false) %}
  {% set p = cdc_position() %}
  {% set source = 'cdc_control' if flags.WHICH in ['run', 'build', 'test'] else '(' ~ cdc_control_sql(p, relid) ~ ')' %}
  {% set events = cdc_rows("select kind, coalesce(schema_id, -1), commit_lsn, ordinal, end_lsn, batch_id, payload from " ~ source
      ~ " where relid = " ~ relid ~ " and commit_lsn < " ~ p.upto ~ " order by commit_lsn, ordinal, batch_id") %}
  {% set versions, baselines, truncates, gaps, healings = [], [], [], [], [] %}
  {% for kind, schema_id, commit, ordinal, end, batch, payload in events %}
    {% set at = {'commit': commit | int, 'ordinal': ordinal | int, 'end': end | int, 'batch': batch | int, 'kind': kind} %}
    {% if kind == 'schema' %}
      {% do versions.append(dict(at, schema_id=schema_id | int, table=fromjson(payload))) %}
    {% elif kind == 'baseline' %}
      {% set fact = fromjson(payload) %}
      {% do healings.append(dict(at, scope=fact.get('scope', 'all'))) %}
      {# A narrower one's rows are updates like any other: they put what was read again, and nothing else. #}
      {% if fact.get('scope', 'all') == 'all' %}{% do baselines.append(at) %}{% endif %}
    {% elif kind == 'truncate' %}
      {% do truncates.append(at) %}
    {% else %}
      {% do gaps.append(at) %}
    {% endif %}
  {% endfor %}
  {% set last = versions | last if versions else none %}
  {% set plan = {'relid': relid, 'position': p, 'gaps': gaps, 'state': 'ok'} %}
  {% if last is none or not baselines %}
    {% do return(dict(plan, state='no baseline')) %}
  {% elif last.table.get('dropped') and not whole %}
    {% do return(dict(plan, state='dropped')) %}
  {% elif last.table.get('dropped') %}
    {# Its rows end there, as they would by a TRUNCATE. #}
    {% do truncates.append(dict(last, kind='drop')) %}
  {% endif %}
  {% set start = baselines | first if whole else baselines | last %}
  {% set clears = [] %}
  {% for clear in baselines + truncates %}
    {% if (clear.commit, clear.ordinal) >= (start.commit, start.ordinal) %}{% do clears.append(clear) %}{% endif %}
  {% endfor %}
  {% set clears = cdc_sorted(clears) %}
  {% set base = clears | first if whole else clears | last %}
  {% set segments = [] %}
  {% for version in versions %}
    {% set table = version.table %}
    {% set keyed = table.replica_identity in ['d', 'i'] and (table.key_attnums or []) | length > 0 %}
    {% set key = table.key_attnums if keyed else [] %}
    {% if (version.commit, version.ordinal) <= (base.commit, base.ordinal) or not segments %}
      {% do segments.clear() %}
      {% do segments.append({'low': {'commit': base.commit, 'ordinal': base.ordinal, 'end': base.end}, 'keyed': keyed, 'key': key, 'version': version}) %}
    {% elif segments[-1].key == key and segments[-1].keyed == keyed %}
      {% do segments[-1].update({'version': version}) %}
    {% else %}
      {% do segments[-1].update({'high': {'commit': version.commit, 'ordinal': version.ordinal, 'end': version.end}}) %}
      {% do segments.append({'low': {'commit': version.commit, 'ordinal': version.ordinal, 'end': version.end}, 'keyed': keyed, 'key': key, 'version': version}) %}
    {% endif %}
  {% endfor %}
  {% do return(dict(plan, version=last, versions=versions, base=base, clears=clears, healings=healings,
                    segments=segments, columns=cdc_columns(versions, baselines if whole else [start]))) %}
{% endmacro %}
