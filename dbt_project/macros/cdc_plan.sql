{#- What a table is at the run's position, and how its log has to be folded to get there. -#}

{#- The plan of one table: version, columns, baseline, clears, segments, gaps.

A baseline covers what stands before its (commit_lsn, ordinal), and its rows stand behind it: one of a birth is at its
CREATE, one read from the source behind all that the log may hold at L - 1.

A segment is a stretch of the log in which rows are told apart in the same way: by the same key columns, or not at all
(bags). Key columns of an event are therefore those of the schema version valid at the event.
-#}
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

{% macro cdc_sorted(items) %}
  {% set order = {} %}
  {% for item in items %}
    {% do order.update({'%020d %020d %d' | format(item.commit, item.ordinal + 1, loop.index): item}) %}
  {% endfor %}
  {% set result = [] %}
  {% for key in order | sort %}
    {% do result.append(order[key]) %}
  {% endfor %}
  {% do return(result) %}
{% endmacro %}

{#- Published columns of the last version, each with its lake name and, for enums, the labels that were renamed. -#}
{% macro cdc_columns(versions, baselines) %}
  {% set table = (versions | last).table %}
  {% set ordered = table.columns | sort(attribute='attnum') %}
  {% set names = fromjson(cdc_lake_columns(ordered)) %}
  {% set columns = [] %}
  {% for column in ordered if column.get('published', true) %}
    {% do columns.append(dict(column, lake=names[column.attnum | string], relabel=cdc_relabel(versions, baselines, column))) %}
  {% endfor %}
  {% do return(columns) %}
{% endmacro %}

{#- How labels of renamed enum values are shown, for each stretch between baselines, latest first: [{from, labels}].
A value's identity is its OID. A baseline was read with the names of its own time; the versions after it carry every
name that a value had since, and a table in which a name meant two values is stale. -#}
{% macro cdc_relabel(versions, baselines, column) %}
  {% set now, result = {}, [] %}
  {% for entry in column.get('enum_labels') or [] %}
    {% do now.update({entry.oid | string: entry.label}) %}
  {% endfor %}
  {% for baseline in baselines if now %}
    {% set next = baselines[loop.index] if not loop.last else none %}
    {% set last = {'labels': []} %}
    {% for version in versions if next is none or (version.commit, version.ordinal) < (next.commit, next.ordinal - 1) %}
      {% for other in version.table.columns if other.attnum == column.attnum and other.type_oid == column.type_oid %}
        {% do last.update({'labels': (other.get('former_labels') or []) + (other.get('enum_labels') or [])}) %}
      {% endfor %}
    {% endfor %}
    {% set labels = {} %}
    {% for entry in last.labels if now.get(entry.oid | string, entry.label) != entry.label %}
      {% do labels.update({entry.label: now[entry.oid | string]}) %}
    {% endfor %}
    {% do result.insert(0, {'from': baseline.end, 'labels': labels}) %}
  {% endfor %}
  {% do return(result if result | selectattr('labels') | list else []) %}
{% endmacro %}
